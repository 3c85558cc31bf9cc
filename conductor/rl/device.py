"""Where torch learns."""

from __future__ import annotations

import torch

from conductor.errors import ConductorError


def check_device(device: str) -> None:
    """Checks a torch device's name.

    Raises:
        ConductorError: there is none of this name here.
    """
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise ConductorError(f"the device is cpu or cuda, not {device!r}")
    if device != "cpu" and not torch.cuda.is_available():
        raise ConductorError(f"torch finds no device {device!r} here")
