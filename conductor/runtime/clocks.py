"""Clocks of the ranks: of one machine the same, of several put together by the messages between them."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from conductor.ir.schedule import FloatArray

Transfers = Mapping[tuple[bool, int], Sequence[tuple[float, bool]]]
"""Of the messages that came, by (is gradient, stage it was for): milliseconds from the sender's clock to
the receiver's, and whether it was there before the receiver looked."""


def machine() -> str:
    """The same text on all ranks that share a monotonic clock, another elsewhere."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return platform.node()


def clock_offsets_ms(
    stage_ranks: Sequence[int], transfers: Transfers, machines: Sequence[str]
) -> FloatArray:
    """By how much each rank's clock is ahead of rank 0's, shape (num_ranks,).

    Between machines, half of what the quickest message one way takes longer than the quickest back.

    Args:
        stage_ranks: the rank of each stage.
        transfers: of all ranks.
        machines: of each rank, from `machine`.
    """
    least: dict[tuple[int, int], float] = {}
    for (is_grad, stage), times in transfers.items():
        link = stage_ranks[stage + 1 if is_grad else stage - 1], stage_ranks[stage]
        least[link] = min([least.get(link, np.inf), *(ms for ms, _ in times)])
    offsets = np.zeros(len(machines))
    known, todo = {0}, [0]
    while todo:
        here = todo.pop()
        for there in range(len(machines)):
            if there in known or {(here, there), (there, here)} - least.keys():
                continue
            ahead = (least[here, there] - least[there, here]) / 2.0
            offsets[there] = offsets[here] + ahead * (machines[here] != machines[there])
            known.add(there)
            todo.append(there)
    return offsets


def link_samples(
    stage_ranks: Sequence[int], transfers: Transfers, offsets_ms: FloatArray
) -> dict[int, list[float]]:
    """Transfer times of each link, by its lower stage, both directions, on one clock.

    What came before the receiver looked counts only where nothing else is known, and then the quickest.
    """
    found: dict[int, list[tuple[float, bool]]] = {}
    for (is_grad, stage), times in transfers.items():
        source = stage + 1 if is_grad else stage - 1
        ahead = float(offsets_ms[stage_ranks[stage]] - offsets_ms[stage_ranks[source]])
        samples = [(max(ms - ahead, 0.0), before) for ms, before in times]
        found.setdefault(min(stage, source), []).extend(samples)
    return {link: _exact(samples) for link, samples in sorted(found.items())}


def merged(rows: Iterable[Transfers]) -> dict[tuple[bool, int], list[tuple[float, bool]]]:
    """The messages of several ranks or steps together."""
    together: dict[tuple[bool, int], list[tuple[float, bool]]] = {}
    for row in rows:
        for key, times in row.items():
            together.setdefault(key, []).extend(times)
    return together


def _exact(samples: Sequence[tuple[float, bool]]) -> list[float]:
    return [ms for ms, before in samples if not before] or [min(ms for ms, _ in samples)]
