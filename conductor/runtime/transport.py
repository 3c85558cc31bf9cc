"""The links of a rank: gloo between CPUs, NCCL with headers on gloo between GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import torch

from conductor.runtime import torch_shim
from conductor.runtime.cuda_links import CudaLink, CudaOutgoing, PolledInbox
from conductor.runtime.dispatch import Arrival
from conductor.runtime.links import AnnouncedLink, Inbox, OrderedLink, Outgoing, Shapes, links_of


@dataclass(slots=True, kw_only=True)
class Links:
    """The links of one rank, by the rank at the other end. An incoming one is announced or ordered."""

    inbox: Inbox
    outgoing: dict[int, Outgoing] = field(default_factory=dict)
    announced: dict[int, AnnouncedLink] = field(default_factory=dict)
    ordered: dict[int, OrderedLink] = field(default_factory=dict)

    def expect(self, senders: dict[int, tuple[Arrival, ...]], lag_ms: dict[int, float]) -> None:
        """These messages come in the next step, from each sender in the order of its plan."""
        for sender, messages in senders.items():
            if sender in self.ordered:
                self.ordered[sender].expect(messages, lag_ms)
            else:
                self.announced[sender].expect(len(messages), lag_ms)

    def abort(self) -> None:
        """Tells the receivers that this rank has failed."""
        for link in self.outgoing.values():
            link.abort()

    def close(self) -> None:
        """Ends the threads."""
        for link in self.announced.values():
            link.close()
        self.outgoing, self.announced, self.ordered = {}, {}, {}


def open_links(
    name: str,
    stage_ranks: Sequence[int],
    rank: int,
    *,
    device: torch.device,
    in_order: bool,
    shapes_of: Callable[[Arrival], Shapes],
    timeout_s: float,
    payload_group: Callable[..., Any] | None = None,
) -> Links:
    """Opens the links of a rank; every rank does at the same place of the program.

    Args:
        name: the same on all ranks.
        stage_ranks: the rank of each stage.
        rank: this one.
        device: of the stages.
        in_order: whether all senders keep to the plan's order, so that receives on gloo can be posted ahead.
        shapes_of: what a message is like.
        timeout_s: longest wait of an operation.
        payload_group: `torch_shim.nccl_pair` on a GPU, none on a CPU; a test's stand-in.
    """
    if payload_group is None and device.type == "cuda":
        payload_group = torch_shim.nccl_pair
    made = Links(inbox=SimpleQueue() if payload_group is None else PolledInbox())
    for sender, receiver in links_of(stage_ranks, rank):
        link, end = f"{name}/{sender}-{receiver}", int(receiver == rank)
        group = torch_shim.pair_group(link, end, timeout_s)
        if payload_group is not None:
            payload = payload_group(f"{link}/payload", end, timeout_s, device)
            warm_up(payload, end, device)
            if end:
                made.announced[sender] = CudaLink(group, payload, sender, made.inbox, device)
            else:
                made.outgoing[receiver] = CudaOutgoing(group, payload, timeout_s)
        elif not end:
            made.outgoing[receiver] = Outgoing(group, timeout_s)
        elif in_order:
            made.ordered[sender] = OrderedLink(group, sender, shapes_of)
        else:
            made.announced[sender] = AnnouncedLink(group, sender, made.inbox)
    return made


def warm_up(payload: Any, end: int, device: torch.device) -> None:
    """One number over a link: NCCL connects at the first operation, which both ends must enter at once."""
    number = torch.zeros(1, device=device)
    work = payload.recv([number], 0, 0) if end else payload.send([number], 1, 0)
    work.wait()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
