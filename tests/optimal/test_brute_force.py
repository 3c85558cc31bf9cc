"""CP-SAT and its bounds against all orders of tiny specs."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.ir.validate import validate
from conductor.optimal.solve import lower_bound_ms, solve
from conductor.problem.placement import stage_ranks
from conductor.problem.spec import PipelineSpec
from tests.optimal.brute_force import brute_force

COSTS = {
    "unit": (1.0, 1.0, 1.0, 0.0),
    "uneven": (10.0, 10.0, 7.0, 0.4),
    "late": (2.0, 5.0, 3.0, 4.0),
    "free weights": (1.0, 2.0, 0.0, 0.5),
}
PLACEMENTS = [("sequential", 1), ("v", 2), ("loop", 2), ("sequential", 2)]


def tiny(costs, ranks, microbatches, *, stages_per_rank=1, placement="sequential", **fields):
    forward, backward_input, backward_weight, transfer = costs
    return PipelineSpec(
        num_ranks=ranks,
        num_microbatches=microbatches,
        stages_per_rank=stages_per_rank,
        placement=placement,
        forward_ms=forward,
        backward_input_ms=backward_input,
        backward_weight_ms=backward_weight,
        transfer_ms=transfer,
        **fields,
    )


def agrees(spec: PipelineSpec, objective: str = "makespan", durations=None) -> None:
    """The proof, the schedule and the searchless bound agree with all orders."""
    least = brute_force(spec, objective, durations)
    result = solve(spec, objective=objective, durations_ms=durations, workers=1, time_limit_s=120)
    assert result.status == "optimal"
    assert result.value_ms == pytest.approx(least, rel=1e-6)
    assert result.bound_ms == pytest.approx(least, rel=1e-5)
    assert result.bound_ms <= least * (1 + 1e-9)
    assert lower_bound_ms(spec, objective=objective, durations_ms=durations) <= least * (1 + 1e-9)
    validate(result.schedule, result.spec)


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("microbatches", [1, 2, 3])
def test_one_stage_a_rank_with_every_limit(costs, microbatches):
    for ranks, limit in itertools.product((1, 2), (None, *range(1, microbatches))):
        spec = tiny(COSTS[costs], ranks, microbatches, memory_limit=limit)
        for objective in ("makespan", "stage-span"):
            agrees(spec, objective)


@pytest.mark.parametrize("placement", PLACEMENTS[1:])
def test_two_stages_a_rank_with_two_microbatches(placement):
    name, per_rank = placement
    for limit in (2.0, 3.0):
        agrees(
            tiny(
                COSTS["uneven"], 2, 2, stages_per_rank=per_rank, placement=name, memory_limit=limit
            )
        )


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["makespan", "stage-span"])
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("costs", COSTS)
def test_every_placement_and_limit_with_three_microbatches(costs, placement, objective):
    name, per_rank = placement
    for limit in range(per_rank, 3 * per_rank + 1):
        spec = tiny(
            COSTS[costs], 2, 3, stages_per_rank=per_rank, placement=name, memory_limit=float(limit)
        )
        agrees(spec, objective)


@st.composite
def tiny_specs(draw):
    """Uneven stages, links and memory on any placement of up to three stages on two ranks."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    ranks = draw(st.sampled_from([(0, 1), (0, 1, 0), (0, 0, 1), (1, 0), (0, 1, 1), (0,)]))
    microbatches = draw(st.integers(1, 3 if len(ranks) < 3 else 2))
    times = draw(st.sampled_from([(1.0, 2.0, 3.0), (0.0, 1.0), (9.7, 10.1, 10.3), (1 / 3, 0.1)]))
    memory = tuple(rng.choice((1.0, 0.3, 2.0)) for _ in ranks)
    need = np.bincount(ranks, memory)
    room = draw(st.sampled_from([1.0, 1.3, 1.7, 2.4, np.inf]))
    return PipelineSpec(
        num_ranks=len(need),
        num_microbatches=microbatches,
        placement=ranks,
        transfer_ms=tuple(rng.choice((0.0, 0.4, 3.0)) for _ in ranks[1:]),
        blocking_transfers=draw(st.booleans()),
        activation_memory=memory,
        freed_at_backward_input=draw(st.sampled_from((0.0, 0.5, 0.3, 1.0))),
        memory_limit=None if room == np.inf else tuple((need * room).tolist()),
        **{
            name: tuple(rng.choice(times) for _ in ranks)
            for name in ("forward_ms", "backward_input_ms", "backward_weight_ms")
        },
    )


@settings(max_examples=40)
@given(tiny_specs(), st.sampled_from(["makespan", "stage-span"]))
def test_uneven_specs(spec, objective):
    agrees(spec, objective)


@settings(max_examples=15)
@given(tiny_specs(), st.integers(0, 2**32))
def test_the_order_of_someone_who_knows_the_realised_durations(spec, seed):
    factors = np.random.default_rng(seed).uniform(
        0.5, 1.5, (3, spec.num_stages, spec.num_microbatches)
    )
    agrees(spec, durations=spec.duration_ms[:3, :, None] * factors)


def test_brute_force_knows_closed_forms():
    """Without limits a sequential pipeline reaches m (F + I + W) + (p - 1) (F + transfer)."""
    assert brute_force(tiny(COSTS["uneven"], 2, 3)) == pytest.approx(3 * 27 + 10.4)
    assert brute_force(tiny(COSTS["unit"], 2, 3, memory_limit=1)) == pytest.approx(3 * 5)
    assert stage_ranks("v", 2, 2) == (0, 1, 1, 0)
