"""Validation: random valid schedules pass, every kind of damage is named."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import DeadlockError, InvalidScheduleError, InvalidSpecError
from conductor.ir.action import Action
from conductor.ir.schedule import Schedule
from conductor.ir.validate import validate
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.simulator.program import encode
from tests.strategies import schedules


def schedule_of(*rows: str, stage_ranks=None, microbatches=2, splits=1) -> Schedule:
    return Schedule.from_actions(
        [[Action.parse(text) for text in row.split()] for row in rows],
        name="made",
        stage_ranks=stage_ranks or tuple(range(len(rows))),
        num_microbatches=microbatches,
        num_splits=splits,
    )


def rebuilt(schedule: Schedule, rows) -> Schedule:
    return Schedule.from_actions(
        rows,
        name=schedule.name,
        stage_ranks=schedule.stage_ranks,
        num_microbatches=schedule.num_microbatches,
        num_splits=schedule.num_splits,
    )


def spec_of(schedule: Schedule, **changes) -> PipelineSpec:
    fields = {
        "num_ranks": schedule.num_ranks,
        "num_microbatches": schedule.num_microbatches,
        "placement": schedule.stage_ranks,
        "forward_ms": 1,
        "backward_input_ms": 1,
        "backward_weight_ms": 1,
    }
    return PipelineSpec(**(fields | changes))


@given(schedules(max_splits=3))
def test_a_random_order_in_which_everything_is_ready_is_valid(schedule):
    validate(schedule, spec_of(schedule))


@given(schedules(), st.data())
def test_a_missing_action_is_named(schedule, data):
    rows = [list(row) for row in schedule.rows]
    rank = data.draw(st.sampled_from([r for r, row in enumerate(rows) if row]))
    action = rows[rank].pop(data.draw(st.integers(0, len(rows[rank]) - 1)))
    with pytest.raises(InvalidScheduleError) as error:
        validate(rebuilt(schedule, rows))
    assert f"{action}" in str(error.value).splitlines()[0]
    assert "missing" in str(error.value)
    assert f"rank {rank}, step " in str(error.value)


@given(schedules(), st.data())
def test_a_second_copy_is_named_with_its_step(schedule, data):
    rows = [list(row) for row in schedule.rows]
    rank = data.draw(st.sampled_from([r for r, row in enumerate(rows) if row]))
    action = data.draw(st.sampled_from(rows[rank]))
    rows[rank].append(action)
    with pytest.raises(InvalidScheduleError) as error:
        validate(rebuilt(schedule, rows))
    message = f"rank {rank}, step {len(rows[rank]) - 1}: {action} stands twice"
    assert str(error.value).startswith(message)


@given(schedules(), st.data())
def test_swapping_two_micro_batches_of_one_kind_is_out_of_order(schedule, data):
    rows = [list(row) for row in schedule.rows]
    pairs = [
        (rank, a, b)
        for rank, row in enumerate(rows)
        for a in range(len(row))
        for b in range(a + 1, len(row))
        if row[a].stage == row[b].stage and row[a].kind == row[b].kind
    ]
    if not pairs:
        return
    rank, a, b = data.draw(st.sampled_from(pairs))
    rows[rank][a], rows[rank][b] = rows[rank][b], rows[rank][a]
    with pytest.raises(InvalidScheduleError, match=rf"^rank {rank}, step \d+: .* order"):
        validate(rebuilt(schedule, rows))


@given(schedules(), st.data())
def test_an_action_before_its_own_forward_is_a_deadlock(schedule, data):
    rows = [list(row) for row in schedule.rows]
    backward = [a for row in rows for a in row if a.kind != Kind.F and a.microbatch == 0]
    moved = data.draw(st.sampled_from(backward))
    row = rows[schedule.stage_ranks[moved.stage]]
    row.remove(moved)
    row.insert(row.index(moved._replace(kind=Kind.F)), moved)
    with pytest.raises(DeadlockError, match=f"{moved} on rank"):
        validate(rebuilt(schedule, rows))


@given(schedules(max_ranks=3, max_splits=2), st.data())
def test_any_two_swapped_actions_are_refused_or_replay_completely(schedule, data):
    """The validator and an independent check of the order (Kahn's algorithm) agree."""
    rows = [list(row) for row in schedule.rows]
    row = data.draw(st.sampled_from([row for row in rows if row]))
    at = data.draw(st.integers(0, len(row) - 1))
    to = data.draw(st.integers(0, len(row) - 1))
    row[at], row[to] = row[to], row[at]
    damaged = rebuilt(schedule, rows)
    try:
        validate(damaged)
    except InvalidScheduleError:
        accepted = False
    else:
        accepted = True
    assert accepted == (_streams_in_order(rows) and _is_acyclic(damaged))


@given(schedules(max_splits=2), st.data())
def test_what_the_kernels_refuse_the_validator_explains(schedule, data):
    rows = [list(row) for row in schedule.rows]
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.sampled_from([row for row in rows if row] or [[schedule.action(0)]]))
        at = data.draw(st.integers(0, len(row) - 1))
        change = data.draw(st.sampled_from(["drop", "repeat", "move", "kind"]))
        action = row.pop(at)
        if change == "repeat":
            row += [action, action]
        elif change == "move":
            data.draw(st.sampled_from(rows)).insert(0, action)
        elif change == "kind":
            row.insert(at, action._replace(kind=data.draw(st.sampled_from(list(Kind)))))
    damaged = rebuilt(schedule, rows)
    try:
        encode(spec_of(schedule), damaged)
    except InvalidScheduleError as refused:
        with pytest.raises(InvalidScheduleError, match=f"^{re.escape(str(refused))}$"):
            validate(damaged)


def _streams_in_order(rows) -> bool:
    streams = {}
    for row in rows:
        for action in row:
            key = action.microbatch
            if action.kind != Kind.W:
                sign = 1 if action.kind == Kind.F else -1
                key = (action.microbatch, sign * action.split)
            streams.setdefault((action.stage, action.kind), []).append(key)
    return all(keys == sorted(keys) for keys in streams.values())


def _is_acyclic(schedule: Schedule) -> bool:
    edges = set()
    everything = {action for row in schedule.rows for action in row}
    for row in schedule.rows:
        edges.update(pairwise(row))
    for a in everything:
        if a.kind == Kind.F:
            sources = [a._replace(stage=a.stage - 1), a._replace(split=a.split - 1)]
        elif a.kind == Kind.W:
            sources = [a._replace(kind=Kind.I)]
        else:
            sources = [a._replace(kind=Kind.F), a._replace(split=a.split + 1)]
            sources += [a._replace(stage=a.stage + 1, kind=kind) for kind in (Kind.I, Kind.B)]
        edges.update((source, a) for source in sources if source in everything)
    while everything:
        blocked = {target for source, target in edges if source in everything}
        if everything <= blocked:
            return False
        everything &= blocked
    return True


def test_ranks_that_wait_for_each_other_are_named_and_drawn():
    with pytest.raises(DeadlockError) as error:
        validate(schedule_of("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"))
    assert str(error.value).splitlines() == [
        "rank 0, step 1: deadlock: ranks 0, 1 wait for each other: 0B0 on rank 0 waits for 1B0"
        " on rank 1, 1F1 on rank 1 waits for 0F1 on rank 0",
        "rank 0 | F0 B0 F1 B1",
        "            ^",
        "rank 1 | F0 F1 B0 B1",
    ]


def test_a_cycle_over_distant_ranks_draws_all_of_them():
    rows = [f"{s}F0 {s + 6}F0 {s + 6}B0 {s}B0" for s in range(6)]
    rows[0] = "6F0 0F0 6B0 0B0"
    with pytest.raises(DeadlockError, match="ranks 0, 1, 2, 3, 4, 5 wait") as error:
        validate(schedule_of(*rows, stage_ranks=(*range(6), *range(6)), microbatches=1))
    assert len(re.findall(r"^rank \d \|", str(error.value), re.M)) == 6


def test_a_full_backward_beside_its_halves_is_refused():
    with pytest.raises(InvalidScheduleError, match="step 2: 0B0 does what an I or a W"):
        validate(schedule_of("0F0 0I0 0B0 0W0", microbatches=1))


def test_an_action_on_another_ranks_stage_is_refused():
    with pytest.raises(InvalidScheduleError, match="rank 0, step 1: 1F0 belongs on rank 1"):
        validate(schedule_of("0F0 1F0 0B0", "1B0", microbatches=1))


def test_a_micro_batch_out_of_range_is_refused():
    with pytest.raises(InvalidScheduleError, match="0F1 is on a micro-batch that is not in 0 to 0"):
        validate(schedule_of("0F0 0F1 0B0", microbatches=1))


def test_an_f_that_overlaps_with_no_backward_is_refused():
    schedule = schedule_of("0F0 0F1 0B0 0B1")
    schedule.overlaps[0] = True
    with pytest.raises(InvalidScheduleError, match="0F0 cannot overlap"):
        validate(schedule)


def test_memory_over_the_limit_names_the_rank_and_what_is_missing():
    schedule = schedule_of("0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1W0 1F1 1I1 1W1")
    spec = spec_of(schedule, memory_limit=(1.5, 1.0), activation_memory=(1.0, 1.0))
    with pytest.raises(InvalidScheduleError) as error:
        validate(schedule, spec)
    assert str(error.value).splitlines() == [
        "rank 0, step 1: memory is exceeded: the rank needs 2 at its peak, its limit is 1.5,"
        " 0.5 is missing",
        "rank 0 | F0 F1 I0 W0 I1 W1",
        "            ^",
        "rank 1 | F0 I0 W0 F1 I1 W1",
    ]
    validate(schedule, spec.with_(memory_limit=(2.0, 1.0)))


def test_what_the_backward_for_the_input_frees_counts():
    schedule = schedule_of("0F0 0I0 0F1 0I1 0W0 0W1")
    spec = spec_of(schedule, memory_limit=1.5, freed_at_backward_input=0.5)
    validate(schedule, spec)
    with pytest.raises(InvalidScheduleError, match=r"needs 1\.6 at its peak"):
        validate(schedule, spec.with_(freed_at_backward_input=0.4))


def test_a_rank_too_few_is_refused():
    schedule = schedule_of("0F0 0B0", "1F0 1B0", microbatches=1)
    spec = spec_of(schedule, num_ranks=3, placement="sequential")
    with pytest.raises(InvalidScheduleError, match="has 2 ranks, but the spec has 3"):
        validate(schedule, spec)


def test_other_micro_batches_or_stages_than_the_specs_are_refused():
    schedule = schedule_of("0F0 0B0", "1F0 1B0", microbatches=1)
    with pytest.raises(InvalidScheduleError, match="has 1 micro-batches, but the spec has 4"):
        validate(schedule, spec_of(schedule, num_microbatches=4))
    with pytest.raises(InvalidSpecError, match="cannot be placed"):
        validate(schedule, spec_of(schedule, placement=(0, 1, 1, 0)))
