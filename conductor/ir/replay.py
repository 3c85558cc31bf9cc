"""Unit-time replay of a schedule: as soon as possible, in plain Python, for drawings and checks."""

from __future__ import annotations

from collections.abc import Iterator

from conductor.ir.action import Action
from conductor.ir.schedule import Schedule
from conductor.problem.kind import KIND_RULES, Kind

UNIT_TIMES = {Kind.F: 1, Kind.I: 1, Kind.W: 1, Kind.B: 2}
"""Columns that each kind takes in a drawing."""


def needs(schedule: Schedule, action: Action) -> Iterator[tuple[Action, ...]]:
    """What an action waits for: each item is a choice of actions, any one of which will do."""
    stage, kind, microbatch, split = action
    rule = KIND_RULES[kind]
    for need in rule.inputs:
        source = stage + need.stage_offset
        if 0 <= source < schedule.num_stages:
            yield tuple(Action(source, other, microbatch, split) for other in need.kinds)
    earlier = split + rule.split_step
    if rule.split_step and 0 <= earlier < schedule.num_splits:
        yield (Action(stage, kind, microbatch, earlier),)


def replay(schedule: Schedule) -> list[list[int]]:
    """The unit time at which each action starts, one list a rank.

    Every rank goes through its row in order; transfers take no time. A forward that overlaps with
    the backward behind it waits for that one's inputs too. A row that gets stuck (deadlock, or an
    input that nobody makes) ends early.
    """
    rows = schedule.rows
    offsets = schedule.rank_offsets.tolist()
    starts: list[list[int]] = [[] for _ in rows]
    clock = [0] * len(rows)
    ends: dict[Action, int] = {}
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while (step := len(starts[rank])) < len(row):
                joined = bool(schedule.overlaps[offsets[rank] + step]) and step + 1 < len(row)
                waits = [need for action in row[step : step + 1 + joined]
                         for need in needs(schedule, action) if row[step] not in need]  # fmt: skip
                arrivals = [[ends[other] for other in need if other in ends] for need in waits]
                if not all(arrivals):
                    break
                start = max([clock[rank], *map(min, arrivals)])
                starts[rank].append(start)
                clock[rank] = ends[row[step]] = start + UNIT_TIMES[row[step].kind]
                moved = True
    return starts
