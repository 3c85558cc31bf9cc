"""Hypothesis strategies: specs and valid schedules of every shape."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from conductor.ir.action import Action
from conductor.ir.schedule import Schedule
from conductor.problem.kind import KIND_RULES, Kind
from conductor.problem.placement import PLACEMENT_NAMES, stage_ranks
from conductor.problem.spec import PipelineSpec


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
    rng: random.Random,
    ranks: tuple[int, ...],
    num_microbatches: int,
    num_splits: int = 1,
    overlap_share: float = 0.0,
) -> Schedule:
    """A random topological order of all actions, cut into ranks.

    A share of the forwards that can overlaps with a full backward of its rank.
    """
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
    overlapping: set[Action] = set()
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
        backwards = [
            other
            for other in ready
            if other.kind == Kind.B and ranks[other.stage] == ranks[action.stage]
        ]
        if action.kind == Kind.F and backwards and rng.random() < overlap_share:
            overlapping.add(action)
            action = rng.choice(backwards)
            streams[action.stage, action.kind].pop(0)
            done.add(action)
            rows[ranks[action.stage]].append(action)
    schedule = Schedule.from_actions(
        rows,
        name="random",
        stage_ranks=ranks,
        num_microbatches=num_microbatches,
        num_splits=num_splits,
    )
    return replace(
        schedule, overlaps=np.array([action in overlapping for row in rows for action in row])
    )


@st.composite
def problems(
    draw, max_ranks: int = 4, max_microbatches: int = 4, *, fits: bool = True, max_splits: int = 2
) -> tuple[PipelineSpec, Schedule]:
    """A spec and a valid schedule for it, of every shape the simulator knows.

    Uneven and explicit placements, sequence splits, overlapping pairs, ties, zero times, blocking
    transfers. With `fits` the memory limits, where there are any, hold the schedule.
    """
    rng = random.Random(draw(st.integers(0, 2**32)))
    num_ranks = draw(st.integers(1, max_ranks))
    ranks = list(stage_ranks(draw(st.sampled_from(PLACEMENT_NAMES)), num_ranks, rng.randint(1, 2)))
    if draw(st.booleans()):
        ranks += [rng.randrange(num_ranks) for _ in range(rng.randint(1, 2))]
        rng.shuffle(ranks)
    schedule = random_schedule(
        rng,
        tuple(ranks),
        draw(st.integers(1, max_microbatches)),
        draw(st.integers(1, max_splits)),
        draw(st.sampled_from((0.0, 0.7))),
    )
    times = draw(st.sampled_from(((1.0,), (0.0, 1.0, 2.0), (9.7, 10.1, 10.3, 0.7))))
    per_stage = {
        name: tuple(rng.choice(times) for _ in ranks)
        for name in ("forward_ms", "backward_input_ms", "backward_weight_ms")
    }
    spec = PipelineSpec(
        num_ranks=num_ranks,
        num_microbatches=schedule.num_microbatches,
        placement=schedule.stage_ranks,
        transfer_ms=tuple(rng.choice((0.0, 0.4, 3.0)) for _ in ranks[1:]),
        blocking_transfers=draw(st.booleans()),
        activation_memory=tuple(rng.choice((1.0, 0.3, 2.0)) for _ in ranks),
        freed_at_backward_input=draw(st.sampled_from((0.0, 0.5, 1.0))),
        overlap_factor=draw(st.sampled_from((1.0, 0.8))),
        **per_stage,
    )
    room = draw(st.sampled_from((None, 1.0, 1.3) if fits else (None, 0.6, 1.0, 1.3)))
    if room is not None:
        spec = spec.with_(memory_limit=tuple(peak * room for peak in planned_peaks(spec, schedule)))
    return spec, schedule


def planned_peaks(spec: PipelineSpec, schedule: Schedule) -> list[float]:
    """The highest memory of each rank when it does its actions in order."""
    peaks = []
    for row in schedule.rows:
        memory = peak = 0.0
        for action in row:
            size = float(spec.per_stage("activation_memory")[action.stage]) / schedule.num_splits
            at_input = spec.freed_at_backward_input
            memory += size * KIND_RULES[action.kind].allocates
            peak = max(peak, memory)
            memory -= size * {Kind.I: at_input, Kind.W: 1 - at_input, Kind.B: 1}.get(action.kind, 0)
        peaks.append(peak)
    return peaks


def durations(expected: np.ndarray, seed: int, draws: int = 1) -> np.ndarray:
    """Realised durations, shape (draws, n): some far from what was expected, some zero, some tied."""
    rng = np.random.default_rng(seed)
    shape = (draws, len(expected))
    factor = rng.choice([0.0, 1.0, 2.0, 5.0], size=shape, p=[0.1, 0.5, 0.3, 0.1])
    return expected * np.where(rng.random(shape) < 0.5, factor, rng.uniform(0.5, 1.5, shape))


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
