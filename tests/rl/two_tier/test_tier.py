"""The compiled tier: equal to the planner's loop without it, to its slow twin with it; the future unseen."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conductor.migration import execution as planner
from conductor.migration.execution import MigrationRules
from conductor.rl.two_tier.guesses import Guesses
from conductor.rl.two_tier.kernels import NUM_CLUES
from conductor.rl.two_tier.network import LendingNetwork
from conductor.rl.two_tier.tier import Tier, run, run_draws
from tests.migration.test_execution import local_ms
from tests.migration.test_reference import MODELS, RULES, prepared_problem
from tests.rl.two_tier.futures import decides_alike_until_it_begins
from tests.rl.two_tier.reference import LearnedReference
from tests.strategies import durations, problems

pytestmark = pytest.mark.slow  # the loop of both tiers compiles for minutes

RUNS = {
    "problem": problems(max_ranks=5, max_microbatches=5),
    "model": MODELS,
    "execution": st.sampled_from(("static", "ready-first")),
    "seed": st.integers(0, 2**32),
}
# Without `recheck` the loop and its twin differ in what is news; a block boundary then changes nothing else.
LEARNED_RULES = st.builds(
    MigrationRules,
    max_lenders=st.integers(1, 4),
    min_gain=st.sampled_from((0.0, 0.02, 0.1)),
    blocks=st.sampled_from((1, 2, 8)),
    recheck=st.just(True),
    postpone=st.booleans(),
    delay_share=st.sampled_from((0.0, 0.5, 0.75)),
)


def random_tier(seed):
    """Guesses and a network that decide something else than the rule."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(0.0, 0.3, (3, NUM_CLUES))
    weights[:, 0] += 1.0
    guesses = Guesses(
        near=weights[0], far=weights[1], lent=weights[2], rms=np.zeros(3), plain_rms=np.zeros(3)
    )
    network = LendingNetwork.initial(4, rng)
    network = network.with_parameters(network.parameters + rng.normal(0.0, 0.2, 12 * 4 + 9))
    return Tier(
        guesses=guesses if rng.random() < 0.8 else None,
        network=network if rng.random() < 0.8 else None,
        patience=[None, 0.0, 0.5, 2.0][rng.integers(4)],
    )


def helps(result):
    columns = (
        result.help_action, result.help_lender, result.help_parts, result.help_decided_ms,
        result.help_start_ms, result.help_end_ms,
    )  # fmt: skip
    return list(zip(*(column.tolist() for column in columns), strict=True))


@settings(max_examples=40)
@given(rules=RULES, **RUNS)
def test_an_empty_tier_is_the_planners_loop(problem, model, rules, execution, seed):
    prepared = prepared_problem(problem, model, rules, execution, seed)
    realised = durations(prepared.program.duration_ms, seed)[0]
    expected = planner.run(prepared, realised)
    for tier in (Tier(), Tier(network=LendingNetwork.initial(4, np.random.default_rng(seed)))):
        got = run(prepared, tier, realised)
        assert got.start_ms.tolist() == expected.start_ms.tolist()
        assert got.end_ms.tolist() == expected.end_ms.tolist()
        assert helps(got) == helps(expected)


@settings(max_examples=80)
@given(rules=LEARNED_RULES, **RUNS)
def test_kernel_equals_reference(problem, model, rules, execution, seed):
    prepared = prepared_problem(problem, model, rules, execution, seed)
    tier = random_tier(seed)
    realised = durations(prepared.program.duration_ms, seed)[0]
    got, expected = run(prepared, tier, realised), LearnedReference(prepared, tier, realised)
    assert got.makespan_ms == pytest.approx(expected.makespan_ms, rel=1e-9)
    assert got.end_ms == pytest.approx([a.end_ms for a in expected.actions], rel=1e-9)
    assert [one[:3] for one in helps(got)] == [
        (h.action, h.lender, h.parts) for h in expected.helps
    ]


@settings(max_examples=40)
@given(rules=LEARNED_RULES, **RUNS)
def test_work_is_conserved_and_nobody_does_two_things_at_once(
    problem, model, rules, execution, seed
):
    prepared = prepared_problem(problem, model, rules, execution, seed)
    result = run(prepared, random_tier(seed), durations(prepared.program.duration_ms, seed)[0])
    own = prepared.realise(durations(prepared.program.duration_ms, seed)[0])[0][0]
    parts = np.bincount(result.help_action, weights=result.help_parts, minlength=len(own))
    assert parts.tolist() == result.moved.tolist()
    took = result.end_ms - result.start_ms - prepared.layout.send_ms
    assert (took >= local_ms(prepared, own, result) - 1e-6).all()
    for rank in range(prepared.program.num_ranks):
        mine = np.arange(*prepared.program.rank_offsets[rank : rank + 2])
        lent = np.flatnonzero(result.help_lender == rank)
        spans = [
            *zip(result.start_ms[mine], result.end_ms[mine], strict=True),
            *zip(result.help_start_ms[lent], result.help_end_ms[lent], strict=True),
        ]
        spans = sorted(span for span in spans if span[1] > span[0])
        for (_, end), (start, _) in zip(spans[:-1], spans[1:], strict=True):
            assert start >= end - 1e-9


@settings(max_examples=80)
@given(rules=LEARNED_RULES, **RUNS)
def test_decisions_do_not_see_the_future(problem, model, rules, execution, seed):
    assume(not problem[1].overlaps.any())
    prepared = prepared_problem(problem, model, rules, execution, seed)
    tier = random_tier(seed)
    decides_alike_until_it_begins(prepared, tier, seed)


def test_draws_are_steps():
    from conductor.migration.scenarios import SCENARIOS
    from conductor.schedules.registry import build

    scenario = SCENARIOS["stragglers-4x8"]
    prepared = planner.prepare(scenario.spec, build("zb-v", scenario.spec))
    drawn = scenario.variation.sample(prepared.program, 3, np.random.default_rng(0))
    tier = random_tier(1)
    alone = [run(prepared, tier, row) for row in drawn]
    together = run_draws(prepared, tier, drawn)
    assert together.makespan_ms.tolist() == [one.makespan_ms for one in alone]
    assert together.helps.tolist() == [len(one.help_action) for one in alone]
