"""What measured steps tell of times, on steps that are simulated."""

from types import SimpleNamespace

import numpy as np
import pytest

from conductor.ir.helps import Helps
from conductor.migration.execution import MigrationRules, prepare, run
from conductor.migration.model import SimpleModel
from conductor.migration.plan import plan_migration
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.runtime.exchange.help import Help, StepHelps
from conductor.runtime.migration.times import action_table, link_ms, profile, start_delays_ms
from conductor.schedules.registry import build
from conductor.simulator.simulate import timeline
from conductor.simulator.timeline import Timeline

SPEC = PipelineSpec(
    num_ranks=4, num_microbatches=8, forward_ms=10.0, backward_input_ms=11.0,
    backward_weight_ms=7.0, transfer_ms=0.5, memory_limit=4.0,
)  # fmt: skip
PLAN = build("zb-1p", SPEC)


def test_what_starts_are_late_by_is_found_where_the_runtime_takes_a_moment_for_each():
    delay = 0.3
    slower = SPEC.with_(
        forward_ms=10.3, backward_input_ms=11.3, backward_weight_ms=7.3
    )  # each action with a moment before it
    times = timeline(slower, PLAN)
    measured = Timeline.measured(SPEC, PLAN, times.start_ms + delay, times.end_ms)
    counts = np.bincount(measured.program.ranks)
    expected = np.full(4, delay)
    expected[0] *= (counts[0] - 1) / counts[0]  # the first action of all waits for nothing
    np.testing.assert_allclose(start_delays_ms(measured, None), expected)


def test_time_in_which_a_rank_helps_others_is_no_delay():
    slow = SPEC.with_(forward_ms=(10.0, 18.0, 10.0, 10.0))
    planned = plan_migration(slow, [PLAN], model=SimpleModel(parts=8), executions=("static",))
    step = run(planned.prepared)
    assert len(step.help_action) > 5
    helps = Helps(
        actions=step.help_action, lenders=step.help_lender, parts=step.help_parts, of_parts=8,
        decided_ms=step.help_decided_ms, start_ms=step.help_start_ms, end_ms=step.help_end_ms,
    )  # fmt: skip
    times = Timeline.measured(slow, PLAN, step.start_ms, step.end_ms)
    np.testing.assert_allclose(start_delays_ms(times, helps), 0.0, atol=1e-9)
    assert start_delays_ms(times, None).max() > 0.0


def test_actions_that_were_helped_tell_only_what_their_own_part_told():
    first = int(PLAN.rank_offsets[1])
    actions = [PLAN.action(first + i) for i in range(int(PLAN.rank_offsets[2]) - first)]
    took = {Kind.F: 10.0, Kind.I: 11.0, Kind.W: 7.0}
    ends = np.cumsum([took[a.kind] for a in actions])
    starts = ends - [took[a.kind] for a in actions]
    forwards = [i for i, a in enumerate(actions) if a.kind is Kind.F]
    ends[forwards[0]] -= 4.0  # helped: shorter
    ends[forwards[1]] += 30.0  # a burst
    schedule = SimpleNamespace(
        plan=PLAN, rank=1, actions=actions,
        times=SimpleNamespace(start_ns=1e6 * starts, end_ns=1e6 * ends, transfers={}),
    )  # fmt: skip
    helped = Help(
        number=1, action=first + forwards[0], borrower=1, lender=0, parts=3.0, decided_ns=0
    )
    table = action_table(schedule, StepHelps(helps=[helped]))
    burst = 11.0  # counts for a tenth more than the median
    assert table[Kind.F, 1] == pytest.approx((6 * 10.0 + burst) / 7)
    assert table[Kind.I, 1] == pytest.approx(11.0)
    told = action_table(
        schedule, StepHelps(helps=[helped], whole_ns={first + forwards[0]: 10_000_000})
    )
    assert told[Kind.F, 1] == pytest.approx((7 * 10.0 + burst) / 8)
    assert link_ms(schedule) == 0.0


def test_a_profile_has_full_backwards_and_the_specs_times_where_nothing_was_measured():
    table = np.zeros((len(Kind), 4))
    table[Kind.F], table[Kind.I], table[Kind.W] = 12.0, 13.0, 8.0
    table[Kind.F, 2] = 0.0
    found = profile(table, np.array([1.0, 0.0, 0.0, 0.0]), SPEC)
    np.testing.assert_allclose(found[Kind.F], [13.0, 12.0, 10.0, 12.0])
    np.testing.assert_allclose(found[Kind.B], [23.0, 21.0, 21.0, 21.0])


def test_a_step_with_what_starts_cost_is_predicted_exactly():
    times = timeline(
        SPEC.with_(forward_ms=10.3, backward_input_ms=11.3, backward_weight_ms=7.3), PLAN
    )
    measured = Timeline.measured(SPEC, PLAN, times.start_ms + 0.3, times.end_ms)
    table = np.zeros((len(Kind), 4))
    table[:3] = SPEC.duration_ms[:3]
    delays = start_delays_ms(measured, None)
    found = profile(table, np.full(4, delays[1]), SPEC)
    predicted = prepare(
        SPEC.with_(
            forward_ms=tuple(found[Kind.F]), backward_input_ms=tuple(found[Kind.I]),
            backward_weight_ms=tuple(found[Kind.W]),
        ),
        PLAN,
    )  # fmt: skip
    idle = MigrationRules(most_parts=0)
    assert run(predicted.with_rules(idle)).makespan_ms == pytest.approx(times.makespan_ms)
