"""Whatever goes wrong on one rank, the others end with the reason."""

import os
import time

import pytest
import torch

from conductor.runtime.executor import ConductorSchedule
from conductor.schedules.registry import build
from tests.runtime.networks import batch, loss_of, network, stages_of
from tests.runtime.ranks import run_ranks
from tests.runtime.test_executor import policy_of, spec_of

RANKS = 3
PLANS = [build(name, spec_of(RANKS, 6)) for name in ("zb-1p", "1f1b")]


def run(rank, fault, mode="static"):
    """Two steps on three ranks; the fault is on rank 1, in the second."""
    plan = PLANS[fault == "plan" and rank == 1]
    if fault == "torch" and rank == 1:
        torch.__version__ = "2.0"
    stages = stages_of(network(RANKS), plan, rank)
    schedule = ConductorSchedule(
        stages, 6, loss_of, plan=plan, timeout_s=10.0 if fault == "hang" else 60.0,
        mode=mode, policy=policy_of(mode), spec=spec_of(RANKS, 6) if mode == "policy" else None,
    )  # fmt: skip
    x, target = batch(6, 0)

    def step():
        schedule.step(*([x] if rank == 0 else []), target=target)

    step()
    if fault == "shape":
        x = x[:, :2]
    elif fault == "too few":
        x = x[:3]
    elif rank == 1:
        stages[0].submod.register_forward_hook(lambda *_: FAULTS[fault]())
    step()


def fail():
    raise ValueError("the user's own error")


FAULTS = {"raise": fail, "die": lambda: os._exit(9), "hang": lambda: time.sleep(1000)}


def messages(fault, mode="static", may_die=()):
    results = run_ranks(run, RANKS, fault, mode, may_die=may_die)
    assert all(isinstance(result, Exception) for result in results if result is not None), results
    return [str(result) for result in results]


@pytest.mark.parametrize(
    "mode", ["static", "ready-first", pytest.param("policy", marks=pytest.mark.slow)]
)
def test_an_error_in_user_code_reaches_every_rank(mode):
    for message in messages("raise", mode):
        assert message.startswith("RankError: rank ")
        assert "rank 1 runs 1F0 in step 1: ValueError: the user's own error" in message


@pytest.mark.parametrize(
    "mode",
    ["static", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("ready-first", "policy"))],
)
def test_a_rank_that_dies_ends_the_others(mode):
    first, _, last = messages("die", mode, may_die=[1])
    assert first.startswith("RankError: rank 0")
    assert last.startswith("RankError: rank 2")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["static", "ready-first"])
def test_a_hang_is_reported_with_who_waits_for_what(mode):
    results = run_ranks(run, RANKS, "hang", mode, may_die=[1])
    first, last = str(results[0]), str(results[2])
    assert "waits in step 1 before 0I0 for the gradient of stage 1 from rank 1" in first + last
    assert "waits in step 1 before 2F0 for the activation of stage 1 from rank 1" in first + last
    assert "rank 1 says nothing: busy, hung or gone" in first + last


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("plan", "plan: rank 0 has"),
        pytest.param("torch", "version of torch: rank 0 has 2.", marks=pytest.mark.slow),
    ],
)
def test_ranks_that_differ_are_refused_everywhere(fault, what):
    for message in messages(fault):
        assert message.startswith(f"RankError: the ranks differ in their {what}")
        assert "rank 1 has" in message


def test_a_micro_batch_of_another_shape():
    for message in messages("shape"):
        assert "stage 0 was declared to give [2, 3, 8] float32, but gave [2, 2, 8]" in message


@pytest.mark.slow
def test_a_batch_with_too_few_micro_batches():
    for message in messages("too few"):
        assert "rank 0 prepares step 1: ValueError: the batch gives 3 micro-batches" in message
