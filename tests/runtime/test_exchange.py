"""Real ranks that do parts of each other's actions: gradients are exact, whatever becomes of a request."""

from collections import Counter

import numpy as np
import pytest

from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from tests.runtime.moving import EAGER, Uneven, moving_schedule, network, one_step
from tests.runtime.plans import split_gpipe
from tests.runtime.ranks import run_ranks
from tests.runtime.test_executor import policy_of


def spec_of(ranks, microbatches, **changes):
    return PipelineSpec(
        num_ranks=ranks, num_microbatches=microbatches, forward_ms=2.0, backward_input_ms=2.0,
        backward_weight_ms=1.0,
    ).with_(**changes)  # fmt: skip


def cases_of(ranks, count):
    """(plan, spec, mode, rules, held columns, pace) of random cases, fixed by the number of ranks."""
    rng = np.random.default_rng(ranks)
    found = []
    for case in range(count):
        mode = ("static", "ready-first", "policy")[case % 3]
        if case % 2:
            name = ("zb-1p", "1f1b", "zb-v", "zb-2p")[case // 2 % 4]
            spec = spec_of(ranks, 2 * ranks)
            plan = build(name, spec)
        else:
            placement = (
                *rng.permutation(ranks).tolist(),
                *rng.integers(0, ranks, case % 3).tolist(),
            )
            plan = split_gpipe(placement, int(rng.integers(2, 6)))
            spec = spec_of(ranks, plan.num_microbatches, placement=plan.stage_ranks)
        rules = (EAGER, EAGER.with_(blocks=8, postpone=True), EAGER.with_(delay_share=0.75))[
            case // 3 % 3
        ]
        held = {}
        if case % 5 == 4:
            for stage, owner in enumerate(plan.stage_ranks):
                lenders = [rank for rank in range(ranks) if rank != owner][:2]
                held[stage] = tuple((lender, 0.25) for lender in lenders)
        pace = None if case % 4 == 1 else Uneven()  # at the machine's own speed
        found.append((plan, spec, mode, rules, held, pace))
    return found


def run_cases(rank, cases):
    """The largest error of each case, and what became of the requests."""
    errors, outcomes = [], Counter()
    for plan, spec, mode, rules, held, pace in cases:
        net = network(plan.num_stages)
        schedule, stages = moving_schedule(
            rank,
            net,
            plan,
            spec,
            rules=rules,
            held=held,
            mode=mode,
            policy=policy_of(mode),
            pace=pace,
        )
        for seed in range(2):
            error, found = one_step(schedule, stages, net, seed)
            errors.append((error, bool(held)))
            outcomes += found
        schedule.barrier()
        schedule.close()
    return errors, outcomes


def check_cases(ranks, count):
    results = run_ranks(run_cases, ranks, cases_of(ranks, count), timeout_s=240)
    assert not any(isinstance(result, Exception) for result in results), results
    outcomes = sum((found for _, found in results), Counter())
    for errors, _ in results:
        assert [error for error, held in errors if not held and error > 0.0] == []  # bitwise
        assert [error for error, held in errors if held and error > 1e-6] == []
    return outcomes


def test_gradients_are_exact_in_five_cases_on_two_ranks():
    assert check_cases(2, 5)["done"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_gradients_are_exact_in_fifteen_cases(ranks):
    outcomes = check_cases(ranks, 15)
    assert outcomes["done"] > 20
    assert ranks == 2 or outcomes["refused"] > 0
