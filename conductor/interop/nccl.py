"""NCCL's sends and receives in profiler traces, matched with the actions whose results they carry.

PyTorch names the device's range of one `nccl:send 0->1` or `nccl:recv 1<-0`, by ranks of the process group, and
newer versions give its kernel (`ncclDevKernel_SendRecv`) the facts `Collective name` and `Rank`, the peer's. Of
a coalesced batch (`nccl:coalesced`) a trace does not tell what was sent to whom.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conductor.ir.trace import Operation
from conductor.problem.kind import Kind

_TITLE = re.compile(r"nccl:(send|recv) \d+(?:->|<-)(\d+)")

Row = tuple[int, int, int, int, int, int]
"""Step, data-parallel rank, pipeline rank, stage, micro-batch, operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One tensor's way, seen from one end; times in microseconds.

    Attributes:
        is_send: or else a receive.
        peer: pipeline rank of the other end.
        start: when the kernel began, which then waits for the other end.
        end: when the data was there.
    """

    is_send: bool
    peer: int
    start: float
    end: float


def end_of_transfer(event: Mapping[str, Any]) -> tuple[bool, int] | None:
    """Whether an event on the device is a send, and its peer; None: it is neither send nor receive."""
    name, category = event["name"], event.get("cat")
    if category == "kernel" and "SendRecv" in name:
        facts = event.get("args") or {}
        direction, peer = facts.get("Collective name"), facts.get("Rank")
        if direction in ("send", "recv") and isinstance(peer, int):
            return direction == "send", peer
    elif category == "gpu_user_annotation":
        title = _TITLE.fullmatch(name)
        if title is not None:
            return title[1] == "send", int(title[2])
    return None


def match_transfers(
    rows: Sequence[Row],
    times: Sequence[tuple[float, float]],
    transfers: Mapping[tuple[int, int], Sequence[Transfer]],
) -> list[tuple[Row, tuple[float, float]]] | None:
    """Gives each transfer the action whose result it carries.

    Between two ranks what was computed first is sent first, and received in that order. Every result may
    be the same number of tensors.

    Args:
        rows: the actions.
        times: start and end of each.
        transfers: by data-parallel rank and pipeline rank.

    Returns:
        A send and a receive for each result that goes to another rank; None where the numbers of actions
        and transfers do not fit.
    """
    ranks = {stage: rank for _, _, rank, stage, _, _ in rows}
    results: dict[tuple[int, int, int], list[tuple[Row, int]]] = defaultdict(list)
    for index in sorted(range(len(rows)), key=lambda i: times[i][1]):
        _, replica, rank, stage, _, kind = row = rows[index]
        target = stage + (1 if kind == Kind.F else -1)
        if kind != Kind.W and ranks.get(target, rank) != rank:
            results[replica, rank, ranks[target]].append((row, target))
    found: list[tuple[Row, tuple[float, float]]] = []
    for (replica, source, destination), sent in results.items():
        for is_send, rank, peer in ((True, source, destination), (False, destination, source)):
            tensors = sorted(
                (t.start, t.end)
                for t in transfers.get((replica, rank), ())
                if t.is_send == is_send and t.peer == peer
            )
            each, rest = divmod(len(tensors), len(sent))
            if rest or not each:
                return None
            for number, ((step, _, _, stage, microbatch, kind), target) in enumerate(sent):
                first = Operation.FORWARD_SEND if kind == Kind.F else Operation.BACKWARD_SEND
                operation = first if is_send else first + 1
                own = tensors[number * each : (number + 1) * each]
                row = step, replica, rank, stage if is_send else target, microbatch, operation
                found.append((row, (own[0][0], max(end for _, end in own))))
    return found
