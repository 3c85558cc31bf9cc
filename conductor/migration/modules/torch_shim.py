"""Every private name of torch that the modules use, in one place. Written against torch 2.13."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_FLASH_CPU = 1  # `SDPBackend.FLASH_ATTENTION`

flash_forward: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def takes_flash(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool
) -> bool:
    """Whether `scaled_dot_product_attention` would run its flash kernel for CPUs here."""
    if query.device.type != "cpu":
        return False
    choice: int = torch._fused_sdp_choice(
        query, key, value, mask, 0.0, causal, enable_gqa=query.shape[1] != key.shape[1]
    )
    return choice == _FLASH_CPU


def in_backward() -> bool:
    """Whether this thread is in a backward, as when a checkpointed block is computed again."""
    return torch._C._current_graph_task_id() != -1


def saving_is_hooked() -> bool:
    """Whether saved tensors are packed, as they are by checkpointing and offloading."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
