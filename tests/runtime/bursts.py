"""A rank that is three times as slow for six actions in the middle of a step."""

import os
from contextlib import suppress

from conductor.migration.model import SimpleModel
from conductor.migration.plan import plan_migration
from conductor.problem.spec import PipelineSpec
from conductor.runtime.migration.control import EXPECTED
from conductor.schedules.registry import build
from tests.runtime.moving import moving_schedule, network, one_step
from tests.runtime.ranks import run_ranks

SPEC = PipelineSpec(
    num_ranks=4, num_microbatches=8, forward_ms=40.0, backward_input_ms=40.0, backward_weight_ms=28.0,
    transfer_ms=1.6, memory_limit=4.0,
)  # fmt: skip
PLAN = build("zb-1p", SPEC)
MODEL = SimpleModel(latency_ms=0.2, part_ms=0.15, parts=8)
SLOW, FIRST, COUNT = 1, 10, 6


class Burst:
    """Expected times, but for six actions of one rank."""

    def __init__(self, factor):
        self._factor = factor

    def targets_ms(self, schedule, step):
        times = SPEC.duration_ms[schedule.kinds, schedule.stages].copy()
        first = int(schedule.rank_offsets[SLOW]) + FIRST
        times[first : first + COUNT] *= self._factor
        return times

    def lag_ms(self, schedule):
        return dict.fromkeys(range(3), 1.6)


def measure(rank, rules, steps):
    """Steps without and with migration, even and with a burst: four lists of times."""
    with suppress(
        PermissionError
    ):  # no other program makes the ranks wait, where that may be asked
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(5))
    net = network(4)
    schedule, stages = moving_schedule(
        rank, net, PLAN, SPEC, model=MODEL, rules=rules, pace=Burst(1.0)
    )
    ready, lendings, units = (
        schedule.exchange.migration,
        schedule.exchange._borrower.lendings,
        schedule.exchange._borrower.units,
    )
    found = []
    for migration in (None, ready):
        schedule.exchange.set_migration(migration, lendings, units)
        for factor in (1.0, 3.0):
            schedule.set_pace(Burst(factor))
            times = []
            for seed in range(steps):
                schedule.barrier()
                one_step(schedule, stages, net, seed)
                times.append(schedule.timeline(SPEC).makespan_ms)
            found.append(times[1:])
    schedule.barrier()
    schedule.close()
    return found


def burst_steps(steps=5):
    rules = plan_migration(
        SPEC, [PLAN], model=MODEL, variation=EXPECTED, executions=("static",), draws=16
    ).rules
    results = run_ranks(measure, 4, rules, steps)
    assert not any(isinstance(result, Exception) for result in results), results
    return results[0]
