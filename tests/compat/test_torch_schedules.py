"""Orders against those of `torch.distributed.pipelining`, where both make the same schedule."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from conductor.ir.schedule import Schedule
from conductor.schedules.dualpipe_v import dualpipe_v
from conductor.schedules.interleaved_1f1b import interleaved_1f1b
from conductor.schedules.looped_bfs import looped_bfs

torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

Step = tuple[int, str, int | None, bool]
"""Stage, kind, micro-batch, whether it overlaps with the next."""


def torch_row(class_name: str, rank: int, **attributes: Any) -> list[Step]:
    """A rank's order by torch's private planning method, which needs few attributes of its object."""
    schedule_class: Any = getattr(torch_schedules, class_name, None)
    if not hasattr(schedule_class, "_calculate_single_rank_operations"):
        pytest.skip(f"this torch does not plan {class_name} rank by rank")
    schedule: Any = object.__new__(schedule_class)
    vars(schedule).update(attributes)
    steps: list[Step] = []
    for action in schedule._calculate_single_rank_operations(rank):
        if action is None:
            continue
        parts = getattr(action, "sub_actions", None) or (action,)
        for number, part in enumerate(parts):
            kind = str(part.computation_type.value)
            overlaps = number + 1 < len(parts)
            steps.append((part.stage_index, kind, part.microbatch_index, overlaps))
    return steps


def our_rows(schedule: Schedule) -> list[list[Step]]:
    rows: list[list[Step]] = []
    for rank, row in enumerate(schedule.rows):
        overlaps = schedule.overlaps[schedule.rank_offsets[rank] :].tolist()
        rows.append(
            [
                (action.stage, action.kind.name, action.microbatch, overlap)
                for action, overlap in zip(row, overlaps, strict=False)
            ]
        )
    return rows


@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("more", [0, 1, 5])
def test_dualpipe_v(p: int, more: int) -> None:
    m = 2 * p + more
    theirs = [
        torch_row("ScheduleDualPipeV", rank, pp_group_size=p, _n_microbatches=m)
        for rank in range(p)
    ]
    assert our_rows(dualpipe_v(p, m)) == theirs


@pytest.mark.parametrize(
    ("p", "m", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 10, 2), (4, 3, 3), (3, 9, 4), (4, 15, 2)]
)
def test_interleaved_1f1b(p: int, m: int, chunks: int) -> None:
    rounds = max(1, m // p)
    theirs = [
        torch_row(
            "ScheduleInterleaved1F1B",
            rank,
            pp_group_size=p,
            n_local_stages=chunks,
            _n_microbatches=m,
            number_of_rounds=rounds,
            microbatches_per_round=m // rounds,
        )
        for rank in range(p)
    ]
    assert our_rows(interleaved_1f1b(p, m, chunks)) == theirs


@pytest.mark.parametrize(("p", "m", "chunks"), [(1, 2, 2), (3, 5, 2), (4, 4, 3)])
def test_looped_bfs_but_for_the_order_of_micro_batches_in_backward(
    p: int, m: int, chunks: int
) -> None:
    stage = SimpleNamespace()
    theirs = [
        torch_row(
            "ScheduleLoopedBFS", rank, pp_group_size=p, _stages=[stage] * chunks, _n_microbatches=m
        )
        for rank in range(p)
    ]
    backwards_in_order = [
        [
            (stage, kind, microbatch if kind == "F" else m - 1 - (microbatch or 0), overlaps)
            for stage, kind, microbatch, overlaps in row
        ]
        for row in theirs
    ]
    assert our_rows(looped_bfs(p, m, chunks)) == backwards_in_order
