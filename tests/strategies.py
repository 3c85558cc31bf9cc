"""Hypothesis strategies: specs and valid schedules of every shape."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from conductor.ir.action import Action
from conductor.ir.schedule import Schedule
from conductor.problem.kind import KIND_RULES, Kind
from conductor.problem.placement import PLACEMENT_NAMES, stage_ranks


@st.composite
def schedules(draw, max_ranks: int = 4, max_microbatches: int = 4, max_splits: int = 1) -> Schedule:
    """A valid schedule: a random order in which everything is ready, on a random placement.

    Each (stage, micro-batch, split) has a full backward or I and W, at random.
    """
    num_ranks = draw(st.integers(1, max_ranks))
    placement = draw(st.sampled_from(PLACEMENT_NAMES))
    ranks = stage_ranks(placement, num_ranks, draw(st.integers(1, 2)))
    num_microbatches = draw(st.integers(1, max_microbatches))
    num_splits = draw(st.integers(1, max_splits))
    return random_schedule(
        random.Random(draw(st.integers(0, 2**32))), ranks, num_microbatches, num_splits
    )


def random_schedule(
    rng: random.Random, ranks: tuple[int, ...], num_microbatches: int, num_splits: int = 1
) -> Schedule:
    """A random topological order of all actions, cut into ranks."""
    streams: dict[tuple[int, Kind], list[Action]] = {}
    for stage in range(len(ranks)):
        fused = {m: rng.random() < 0.5 for m in range(num_microbatches)}
        for kind, rule in KIND_RULES.items():
            splits = range(num_splits)[:: -1 if rule.split_step == 1 else 1]
            streams[stage, kind] = [
                Action(stage, kind, m, split)
                for m in range(num_microbatches)
                if kind == Kind.F or fused[m] == (kind == Kind.B)
                for split in splits
            ]
    done: set[Action] = set()
    rows: list[list[Action]] = [[] for _ in range(max(ranks) + 1)]
    while True:
        ready = [
            stream[0]
            for stream in streams.values()
            if stream and _is_ready(stream[0], done, len(ranks), num_splits)
        ]
        if not ready:
            break
        action = rng.choice(ready)
        streams[action.stage, action.kind].pop(0)
        done.add(action)
        rows[ranks[action.stage]].append(action)
    return Schedule.from_actions(
        rows,
        name="random",
        stage_ranks=ranks,
        num_microbatches=num_microbatches,
        num_splits=num_splits,
    )


def _is_ready(action: Action, done: set[Action], num_stages: int, num_splits: int) -> bool:
    stage, kind, microbatch, split = action
    rule = KIND_RULES[kind]
    for need in rule.inputs:
        source = stage + need.stage_offset
        if 0 <= source < num_stages and not any(
            Action(source, other, microbatch, split) in done for other in need.kinds
        ):
            return False
    earlier = split + rule.split_step
    return not (
        rule.split_step
        and 0 <= earlier < num_splits
        and Action(stage, kind, microbatch, earlier) not in done
    )
