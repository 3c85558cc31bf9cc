"""Drawings of schedules."""

import pytest

from conductor.errors import InvalidScheduleError
from conductor.ir.action import Action
from conductor.ir.draw import draw, draw_around
from conductor.ir.schedule import Schedule


def schedule_of(*rows: str, stage_ranks=None, microbatches=2, overlaps=None, splits=1) -> Schedule:
    made = Schedule.from_actions(
        [[Action.parse(text) for text in row.split()] for row in rows],
        name="drawn",
        stage_ranks=stage_ranks or tuple(range(len(rows))),
        num_microbatches=microbatches,
        num_splits=splits,
    )
    if overlaps is not None:
        made.overlaps[overlaps] = True
    return made


def test_each_action_stands_at_its_unit_time_and_a_full_backward_takes_two():
    grid = draw(schedule_of("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"))
    assert grid.splitlines() == [
        "rank 0 | F0 F1       B0---    B1---",
        "rank 1 |    F0 B0--- F1 B1---",
    ]


def test_several_stages_a_rank_show_the_stage():
    grid = draw(
        schedule_of("0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0", stage_ranks=(0, 1, 1, 0), microbatches=1)
    )
    assert grid.splitlines() == [
        "rank 0 | 0F0         3F0 3B0----                 0B0----",
        "rank 1 |     1F0 2F0             2B0---- 1B0----",
    ]


def test_cells_are_as_wide_as_the_widest_action():
    grid = draw(schedule_of(" ".join(f"0F{i}" for i in range(11)), microbatches=11))
    assert grid == "rank 0 | " + " ".join(f"F{i}".ljust(3) for i in range(11)).rstrip()


def test_a_plus_joins_an_overlapping_pair_that_waits_for_both():
    rows = ("0F0 3F0 0F1 3B0 3F1 0B0 3B1 0B1", "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1")
    apart = draw(schedule_of(*rows, stage_ranks=(0, 1, 1, 0)))
    joined = draw(schedule_of(*rows, stage_ranks=(0, 1, 1, 0), overlaps=[4]))
    assert "3F1+0B0----" in joined
    assert "3F1 " in apart
    assert "+" not in apart


def test_sequence_splits_run_forward_and_back():
    grid = draw(schedule_of("0F0 0F0.1 0B0.1 0B0", microbatches=1, splits=2))
    assert grid == "rank 0 | F0   F0.1 B0.1----- B0-------"


def test_a_stuck_schedule_has_no_grid():
    with pytest.raises(InvalidScheduleError, match="gets stuck"):
        draw(schedule_of("0B0 0F0", microbatches=1))


def test_the_window_has_an_arrow_at_the_action():
    long = schedule_of(
        *(" ".join(f"{r}F{i}" for i in range(30)) for r in range(12)), microbatches=30
    )
    assert draw_around(long, 5, 20, also=[11], reach=2).splitlines() == [
        "rank  4 | ... F18 F19 F20 F21 F22 ...",
        "rank  5 | ... F18 F19 F20 F21 F22 ...",
        "                      ^",
        "rank  6 | ... F18 F19 F20 F21 F22 ...",
        "rank 11 | ... F18 F19 F20 F21 F22 ...",
    ]


def test_the_window_can_point_behind_the_end_of_a_row():
    lines = draw_around(schedule_of("0F0 0F1", "1F0 1F1"), 1, 2).splitlines()
    assert lines[-1].index("^") == len("rank 1 | F0 F1 ")
