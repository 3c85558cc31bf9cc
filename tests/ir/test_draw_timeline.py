"""Drawings of timelines to scale."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from conductor.ir.action import Action
from conductor.ir.draw_timeline import draw_timeline
from conductor.ir.schedule import Schedule
from tests.strategies import schedules


@dataclass
class Times:
    schedule: Schedule
    start_ms: np.ndarray
    end_ms: np.ndarray


def times_of(*rows: str, start, end, stage_ranks=None, overlaps=()) -> Times:
    actions = [[Action.parse(text) for text in row.split()] for row in rows]
    schedule = Schedule.from_actions(
        actions, name="timed", stage_ranks=stage_ranks or range(len(rows)), num_microbatches=20
    )
    schedule.overlaps[list(overlaps)] = True
    return Times(schedule, np.array(start, float), np.array(end, float))


def test_actions_are_drawn_to_scale():
    times = times_of("0F0 0B0", "1F0 1B0", start=[0, 40, 10, 20], end=[10, 60, 20, 40])
    assert draw_timeline(times, width=8 + 30).splitlines() == [
        "rank 0 |F0---               B0--------",
        "rank 1 |     F0---B0--------",
        "       |0" + "60 ms".rjust(29),
    ]


def test_the_critical_path_is_a_row_of_rank_numbers():
    times = times_of("0F0 0B0", "1F0 1B0", start=[0, 42, 12, 22], end=[10, 60, 22, 42])
    lines = draw_timeline(times, width=8 + 30, critical_path=[0, 2, 3, 1]).splitlines()
    assert lines[2] == "path   |00000-" + "1" * 15 + "0" * 9


def test_a_number_that_does_not_fit_is_left_out_whole():
    times = times_of("0F12 0B12", start=[0, 2], end=[2, 3])
    assert draw_timeline(times, width=8 + 3).splitlines()[0] == "rank 0 |F-B"


def test_other_stages_of_a_rank_are_small():
    times = times_of("0F1 1F1 1B1 0B1", start=[0, 2, 4, 6], end=[2, 4, 6, 8], stage_ranks=(0, 0))
    assert draw_timeline(times, width=8 + 8).splitlines()[0] == "rank 0 |F1f1b1B1"


def test_an_overlapping_pair_shares_its_time():
    times = times_of("0F1 0B0", start=[0, 0], end=[8, 8], overlaps=[0])
    assert draw_timeline(times, width=8 + 8).splitlines()[0] == "rank 0 |F1--B0--"


def test_the_order_is_that_of_the_times_not_of_the_schedule():
    times = times_of("0F1 0B0", start=[4, 0], end=[8, 4])
    assert draw_timeline(times, width=8 + 8).splitlines()[0] == "rank 0 |B0--F1--"


def test_a_common_edge_leaves_room_at_the_right():
    times = times_of("0F1", start=[0], end=[4])
    assert draw_timeline(times, width=8 + 16, end_ms=8.0).splitlines() == [
        "rank 0 |F1------",
        "       |0" + "8 ms".rjust(15),
    ]


@given(schedules(max_ranks=3), st.integers(20, 150), st.integers(0, 2**32))
def test_no_line_is_wider_than_asked_and_busy_columns_follow_the_busy_time(schedule, width, seed):
    rng = np.random.default_rng(seed)
    duration = rng.uniform(1, 3, schedule.num_actions)
    start = np.zeros(schedule.num_actions)
    for low, high in zip(schedule.rank_offsets[:-1], schedule.rank_offsets[1:], strict=True):
        gaps = rng.uniform(0, 2, high - low)
        start[low:high] = np.cumsum(gaps + duration[low:high]) - duration[low:high]
    times = Times(schedule, start, start + duration)
    lines = draw_timeline(times, width).splitlines()
    assert max(map(len, lines)) <= width
    columns = width - 8
    column_ms = times.end_ms.max() / columns
    for rank, line in enumerate(lines[:-1]):
        mine = slice(*schedule.rank_offsets[rank : rank + 2])
        busy_columns = len(line[8:].replace(" ", ""))
        # Each action is off by less than a column.
        assert abs(busy_columns * column_ms - duration[mine].sum()) <= column_ms * len(
            duration[mine]
        )
