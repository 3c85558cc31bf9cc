"""The policy of both tiers in the event loop: rule and plan where it is held, and nothing it cannot know."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conductor.errors import ConductorError
from conductor.migration import execution as planner
from conductor.migration.execution import MigrationRules, prepare
from conductor.migration.model import SimpleModel
from conductor.migration.scenarios import equal_ranks
from conductor.rl.instance import Instance
from conductor.rl.kernels import NUM_FEATURES
from conductor.rl.two_tier.network import LendingNetwork
from conductor.rl.two_tier.policy.kernels import NUM_OPTION_FEATURES
from conductor.rl.two_tier.policy.network import TwoTierPolicy
from conductor.rl.two_tier.tier import Tier, run
from conductor.schedules.registry import build
from tests.migration.test_execution import decisions, local_ms
from tests.migration.test_reference import MODELS
from tests.rl.two_tier.futures import decides_alike_until_it_begins
from tests.rl.two_tier.test_tier import LEARNED_RULES, helps
from tests.strategies import durations, problems

pytestmark = pytest.mark.slow  # the loop of both tiers compiles for minutes

RUNS = {
    "problem": problems(max_ranks=4, max_microbatches=5),
    "model": MODELS,
    "rules": LEARNED_RULES,
    "seed": st.integers(0, 2**32),
}


def random_policy(seed, last=0.5):
    """Two layers of 8, a lending head of 4; `last` 0 lends by the rule."""
    rng = np.random.default_rng(seed)

    def random(*shape):
        return rng.normal(0.0, 0.5, shape).astype(np.float32)

    weights = tuple(
        random(*shape) for shape in ((NUM_FEATURES, 8), (1, 8), (8, 8), (1, 8), (8, 4), (1, 4))
    )
    return TwoTierPolicy(
        weights=weights, from_trunk=random(8, 4), from_option=random(NUM_OPTION_FEATURES, 4),
        bias=random(4), last=last * random(4),
    )  # fmt: skip


def prepared_plan(problem, model, rules, execution, seed):
    """A plan that a policy can run, with latest starts of its own; others are left out."""
    spec, schedule = problem
    try:
        schedule = Instance.of(spec, schedule).plan
    except ConductorError:
        assume(False)
    prepared = prepare(spec, schedule, model=model, rules=rules, execution=execution)
    latest = np.random.default_rng(seed).uniform(0.0, 50.0, prepared.program.num_actions)
    return prepared.with_rules(rules.with_(latest_start_ms=latest))


@settings(max_examples=40)
@given(**RUNS)
def test_a_head_of_zeros_is_the_planners_rule(problem, model, rules, seed):
    prepared = prepared_plan(problem, model, rules, "static", seed)
    realised = durations(prepared.program.duration_ms, seed)[0]
    expected = planner.run(prepared, realised)
    got = run(prepared, Tier(policy=random_policy(seed, last=0.0), lends=True), realised)
    assert got.end_ms.tolist() == expected.end_ms.tolist()
    assert helps(got) == helps(expected)


@settings(max_examples=40)
@given(**RUNS)
def test_an_order_held_for_good_is_the_plans(problem, model, rules, seed):
    """Without help: with it, what a rank expects of others depends on whether they may leave their order."""
    rules = rules.with_(most_parts=0)
    planned = prepared_plan(problem, model, rules, "static", seed)
    assume((planned.layout.limits <= planned.program.memory_limits * 1.000001).all())
    prepared = prepared_plan(problem, model, rules, "ready-first", seed)
    realised = durations(planned.program.duration_ms, seed)[0]
    got = run(prepared, Tier(policy=random_policy(seed), orders=True, stay=1e6), realised)
    assert got.end_ms.tolist() == planner.run(planned, realised).end_ms.tolist()


def some_tier(seed):
    rng = np.random.default_rng(seed)
    return Tier(
        policy=random_policy(seed), orders=True, lends=bool(rng.random() < 0.8),
        stay=float(rng.choice([0.0, 1.0])), patience=[None, 0.5][rng.integers(2)],
    )  # fmt: skip


@settings(max_examples=60)
@given(**RUNS)
def test_decisions_do_not_see_the_future(problem, model, rules, seed):
    prepared = prepared_plan(problem, model, rules, "ready-first", seed)
    tier = some_tier(seed)
    decides_alike_until_it_begins(prepared, tier, seed)


@settings(max_examples=40)
@given(**RUNS)
def test_work_is_conserved_and_memory_kept(problem, model, rules, seed):
    prepared = prepared_plan(problem, model, rules, "ready-first", seed)
    realised = durations(prepared.program.duration_ms, seed)[0] + 0.01
    result = run(prepared, some_tier(seed), realised)
    own = prepared.realise(realised)[0][0]
    parts = np.bincount(result.help_action, weights=result.help_parts, minlength=len(own))
    assert parts.tolist() == result.moved.tolist()
    took = result.end_ms - result.start_ms - prepared.layout.send_ms
    assert (took >= local_ms(prepared, own, result) - 1e-6).all()
    program = prepared.program
    for rank in range(program.num_ranks):
        mine = np.arange(*program.rank_offsets[rank : rank + 2])
        order = mine[np.lexsort((mine, result.start_ms[mine]))]
        held = np.cumsum(program.allocated[order]) - np.cumsum(program.freed[order])
        peak = (held + program.freed[order]).max()
        assert peak <= program.memory_limits[rank] * (1.0 + 1e-6)
        lent = np.flatnonzero(result.help_lender == rank)
        spans = [
            *zip(result.start_ms[mine], result.end_ms[mine], strict=True),
            *zip(result.help_start_ms[lent], result.help_end_ms[lent], strict=True),
        ]
        spans = sorted(span for span in spans if span[1] > span[0])
        for (_, end), (start, _) in zip(spans[:-1], spans[1:], strict=True):
            assert start >= end - 1e-9


def test_a_late_link_is_known_when_its_first_message_is_late():
    spec = equal_ranks(4, 8, 8.0)
    late = spec.with_(transfer_ms=(0.4, 30.4, 0.4))
    schedule = build("zb-v", spec)
    planned, actual = (prepare(one, schedule, execution="ready-first") for one in (spec, late))
    steadfast = Tier(patience=1e9)
    expected = run(planned, steadfast)
    got = run(actual, steadfast, planned=planned)
    across = (schedule.stages == 2) & (schedule.kinds == 0) & (schedule.microbatches == 0)
    told = expected.start_ms[np.flatnonzero(across)[0]]  # its input should be there by then
    assert decisions(got, told - 1e-6) == decisions(expected, told - 1e-6)
    strict = planner.run(prepare(late, schedule))
    assert got.makespan_ms < 0.95 * strict.makespan_ms


def test_a_policy_survives_its_file(tmp_path):
    policy = random_policy(3)
    policy.save(tmp_path / "policy.npz", seed=4)
    again = TwoTierPolicy.load(tmp_path / "policy.npz")
    assert all((a == b).all() for a, b in zip(again.weights, policy.weights, strict=True))
    assert (again.last == policy.last).all()
    assert again.meta["seed"] == 4


def test_a_lending_network_is_taken_over():
    rng = np.random.default_rng(0)
    lending = LendingNetwork.initial(4, rng)
    lending = lending.with_parameters(lending.parameters + rng.normal(0.0, 0.2, 12 * 4 + 9))
    policy = TwoTierPolicy.initial(random_policy(1).weights, rng, lending=lending)
    features = np.append(rng.normal(size=12), np.zeros(NUM_OPTION_FEATURES - 12))
    inner = np.maximum(features @ policy.from_option + policy.bias, 0.0)
    hidden = np.maximum(features[:12] @ lending.first + lending.first_bias, 0.0)
    expected = policy.lean * (hidden @ lending.last + lending.last_bias)
    assert inner @ policy.last == pytest.approx(expected, rel=1e-5)
    assert not policy.from_trunk[:, :6].any()


def test_rules_of_many_parts_have_room():
    """Every lender with every eighth of 33 parts."""
    spec = equal_ranks(8, 8, 8.0)
    rules = MigrationRules(max_lenders=4, max_candidates=8, blocks=8, postpone=True, recheck=True)
    prepared = prepare(spec, build("zb-v", spec), model=SimpleModel(parts=33), rules=rules)
    got = run(prepared, Tier(policy=random_policy(0, last=0.0), lends=True))
    assert got.makespan_ms == planner.run(prepared).makespan_ms
