"""Lenders and borrowers that fail: what is owed is computed at home, or every rank ends with the reason."""

import os
import time

import pytest

from conductor.runtime.exchange.borrower import Borrower
from conductor.runtime.exchange.lender import Lender
from conductor.schedules.registry import build
from tests.runtime.moving import moving_schedule, network, one_step
from tests.runtime.ranks import run_ranks
from tests.runtime.test_exchange import spec_of

RANKS = 3
TIMEOUT_S = 6.0
SPEC = spec_of(RANKS, 4, forward_ms=20.0, backward_input_ms=20.0, backward_weight_ms=10.0)
PLAN = build("zb-1p", SPEC)


class Even:
    """The expected times."""

    def targets_ms(self, schedule, step):
        return SPEC.duration_ms[schedule.kinds, schedule.stages]

    def lag_ms(self, schedule):
        return {}


def die(exchange, *args):
    os._exit(9)


def hang(exchange, *args):
    time.sleep(1000)


def answer_late(exchange, promise):
    time.sleep(0.15)
    serve(exchange, promise)


def ask_and_die(exchange, *args):
    ask(exchange, *args)
    os._exit(9)


serve, ask = Lender._keep, Borrower._request


def run(rank, fault):
    """Two steps; with a fault of rank 1 as a lender, or of rank 0 as a borrower."""
    net = network(RANKS)
    schedule, stages = moving_schedule(rank, net, PLAN, SPEC, pace=Even(), timeout_s=TIMEOUT_S)
    results = [one_step(schedule, stages, net, 0)]
    if rank == 1 and fault in ("die", "hang", "late"):
        Lender._keep = {"die": die, "hang": hang, "late": answer_late}[fault]
    if rank == 0 and fault == "borrower dies":
        Borrower._request = ask_and_die
    start = time.monotonic()
    results.append(one_step(schedule, stages, net, 1))
    took_s = time.monotonic() - start
    schedule.barrier()
    schedule.close()
    return results, took_s, schedule.exchange.report.peak_bytes


def test_a_late_lender_costs_time_and_no_exactness():
    results = run_ranks(run, RANKS, "late")
    assert not any(isinstance(result, Exception) for result in results), results
    for rank, ((_, (error, outcomes)), took_s, peak_bytes) in enumerate(results):
        assert error == 0.0
        assert took_s < 10.0
        if rank == 0:
            assert outcomes["late"] > 0
        # One promise and one help at a time; each is at most the heads of one block there.
        assert peak_bytes < 2 * 4 * 4 * 2 * 3 * 8 * 4


@pytest.mark.parametrize(("fault", "dead"), [("die", 1), ("borrower dies", 0)])
def test_a_rank_that_dies_in_a_help_ends_the_others(fault, dead):
    results = run_ranks(run, RANKS, fault, may_die=[dead])
    messages = [str(result) for rank, result in enumerate(results) if rank != dead]
    assert all(message.startswith("RankError: rank") for message in messages), messages


@pytest.mark.slow
def test_a_lender_that_hangs_ends_the_others_within_the_timeout():
    start = time.monotonic()
    results = run_ranks(run, RANKS, "hang", may_die=[1])
    assert time.monotonic() - start < 60.0
    assert all(str(results[rank]).startswith("RankError: rank") for rank in (0, 2)), results
    assert "rank 1 says nothing" in str(results[0]) + str(results[2])
