"""Processes that train one policy together, each on its share of the episodes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

from conductor.errors import ConductorError
from conductor.ir.schedule import FloatArray, Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """This process among those that train together.

    Attributes:
        rank: of this process.
        count: of all.
        device: of this process's network and messages, cpu (gloo) or cuda (NCCL).
    """

    rank: int = 0
    count: int = 1
    device: str = "cpu"

    def share(self, count: int, *, together: int = 1) -> slice:
        """This process's part of `count` items; each `together` following ones stay in one part."""
        edges = np.linspace(0, -(-count // together), self.count + 1).astype(int) * together
        return slice(int(edges[self.rank]), min(int(edges[self.rank + 1]), count))

    def joined(self, own: npt.ArrayLike, places: Int64Array, count: int) -> FloatArray:
        """The `count` values of all processes, where `own` are this one's, at `places` among them."""
        values = np.zeros(count)
        values[places] = np.asarray(own)
        if self.count > 1:
            tensor = torch.from_numpy(values).to(self.device)
            dist.all_reduce(tensor)  # exact: all but one of the summands are 0
            values = tensor.cpu().numpy()
        return values

    def add_gradients(self, network: nn.Module) -> None:
        """Replaces every gradient by its sum over all processes."""
        if self.count == 1:
            return
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        end = 0
        for gradient in gradients:
            end += gradient.numel()
            gradient.copy_(flat[end - gradient.numel() : end].view_as(gradient))

    def total(self, own: float) -> float:
        """Sum of a number over all processes."""
        return float(self.joined([own], np.array([self.rank]), self.count).sum())


_DRAIN_S = 0.2
"""Ample for threads that wait for nothing but the interpreter's lock."""

ALONE = Processes()
"""No other process."""


@contextmanager
def launched(device: str) -> Iterator[Processes]:
    """The processes that torchrun has started together, joined; this one alone without torchrun.

    On CUDA each gets its own device, and NCCL carries the messages (not tested on GPUs).

    Args:
        device: where the networks learn: cpu or cuda.

    Raises:
        ConductorError: this PyTorch cannot carry messages between the devices.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes(device=device)
        return
    backend = "gloo"
    if device != "cpu":
        backend, device = "nccl", f"cuda:{os.environ['LOCAL_RANK']}"
        if not dist.is_nccl_available():
            raise ConductorError("this PyTorch comes without NCCL: train with --device cpu")
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    try:
        yield Processes(rank=dist.get_rank(), count=count, device=device)
    finally:
        # Gloo's threads free what they have sent a little later, with the interpreter's lock: a process that
        # ends before they got it aborts ("terminate called without an active exception"). Nothing can be waited
        # for but the time that this takes; holding on to the tensors instead left one abort in fifteen.
        time.sleep(_DRAIN_S)
        dist.destroy_process_group()
