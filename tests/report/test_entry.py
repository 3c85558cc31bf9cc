"""Idle time in pieces, memory over time, and the table: all agree with the timeline."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.ir.helps import Helps
from conductor.problem.presets import load_preset
from conductor.problem.spec import PipelineSpec
from conductor.report.entry import Entry, idle_pieces, memory_steps
from conductor.report.metrics import metrics
from conductor.report.simulated import migrated, simulated
from conductor.schedules.registry import build
from conductor.simulator.idle import IdleCause
from conductor.simulator.program import encode
from conductor.simulator.simulate import timeline
from tests.strategies import durations, problems

UNIT = {"forward_ms": 1.0, "backward_input_ms": 1.0, "backward_weight_ms": 1.0}


def entry_of(problem, seed, execution="static"):
    spec, schedule = problem
    realised = durations(encode(spec, schedule).duration_ms, seed)
    return Entry(
        title="drawn", note="", timeline=timeline(spec, schedule, realised[0], execution=execution)
    )


@pytest.mark.parametrize("execution", ["static", "ready-first"])
@given(problem=problems(), seed=st.integers(0, 2**32))
def test_idle_pieces_and_actions_tile_the_step_of_each_rank(execution, problem, seed):
    entry = entry_of(problem, seed, execution)
    drawn, pieces = entry.timeline, idle_pieces(entry)
    idle = np.zeros((len(IdleCause), drawn.schedule.num_ranks))
    np.add.at(idle, (pieces.causes, pieces.ranks), pieces.end_ms - pieces.start_ms)
    assert idle == pytest.approx(drawn.idle_ms, abs=1e-6)
    for rank in range(drawn.schedule.num_ranks):
        own = drawn.program.ranks == rank
        mine = pieces.ranks == rank
        spans = {*zip(drawn.start_ms[own], drawn.end_ms[own], strict=True)}  # a pair counts once
        spans |= {*zip(pieces.start_ms[mine], pieces.end_ms[mine], strict=True)}
        edges = np.array(sorted(spans, key=sum))
        assert edges[1:, 0] == pytest.approx(edges[:-1, 1], abs=1e-6)
        assert (edges[0, 0], edges[-1, 1]) == pytest.approx((0.0, drawn.makespan_ms))


@given(problem=problems(), seed=st.integers(0, 2**32))
def test_memory_over_time_peaks_where_the_timeline_does_and_ends_empty(problem, seed):
    drawn = entry_of(problem, seed).timeline
    for rank, peak in enumerate(drawn.peak_memory):
        times, levels = memory_steps(drawn, rank)
        assert (np.diff(times) >= 0.0).all()
        assert levels.max(initial=0.0) == pytest.approx(peak)
        assert levels[-1:] == pytest.approx(0.0, abs=1e-9)


def test_both_of_an_overlapping_pair_hold_memory_while_they_run():
    spec = load_preset("gpt-like").with_(memory_limit=None)
    drawn = simulated(spec, build("dualpipe-v", spec), title="pairs").timeline
    assert drawn.program.overlaps.any()
    for rank, peak in enumerate(drawn.peak_memory):
        times, levels = memory_steps(drawn, rank)
        assert (np.diff(times) >= 0.0).all()
        assert levels.max() == peak


def test_a_rank_that_helps_does_not_idle_then():
    spec = PipelineSpec(num_ranks=2, num_microbatches=1, **UNIT)
    drawn = timeline(spec, build("1f1b", spec))  # rank 0 idles in [1, 4]
    helps = Helps(
        actions=np.array([1], np.int32), lenders=np.array([0], np.int32),
        parts=np.array([3], np.int32), of_parts=4,
        decided_ms=np.array([1.0]), start_ms=np.array([1.5]), end_ms=np.array([2.25]),
    )  # fmt: skip
    entry = Entry(title="helped", note="", timeline=drawn, helps=helps)
    pieces = idle_pieces(entry)
    rank = pieces.ranks == 0
    gaps = list(zip(pieces.start_ms[rank], pieces.end_ms[rank], strict=True))
    assert gaps == [(1.0, 1.5), (2.25, 4.0)]
    assert entry.busy_ms.tolist() == [3.75, 3.0]


def test_the_table_says_what_the_timelines_say():
    spec = load_preset("gpt-like")
    entries = [simulated(spec, build(name, spec), title=name) for name in ("1f1b", "zb-1p")]
    table = {row.name: row for row in metrics(entries)}
    assert table["makespan"].values == ("303.40 ms", "259.80 ms")
    assert table["makespan"].best == (False, True)
    assert table["over the bound"].values == ("16.78 %", "0.00 %")
    assert table["bubble ratio"].values == ("28.81 %", "16.86 %")
    assert table["peak memory"].values == ("4", "4")
    assert table["peak memory"].best == (False, False)
    for column, entry in enumerate(entries):
        idle = [metric for metric in table.values() if metric.group]
        shares = [float(metric.values[column].rstrip(" %")) for metric in idle]
        assert sum(shares) == pytest.approx(100 * entry.timeline.bubble_ratio, abs=0.03)
    assert "helps" not in table


def test_migration_is_faster_and_its_helps_fit_between_the_lenders_own_actions():
    spec = load_preset("paper")
    schedule = build("zb-1p", spec)
    plain, moved = simulated(spec, schedule, title="a"), migrated(spec, schedule, title="b")
    assert moved.lower_bound_ms <= moved.timeline.makespan_ms < plain.timeline.makespan_ms
    assert len(moved.helps.actions) > 0
    drawn = moved.timeline
    for lender, start, end in zip(
        moved.helps.lenders, moved.helps.start_ms, moved.helps.end_ms, strict=True
    ):
        own = drawn.program.ranks == lender
        overlap = np.minimum(drawn.end_ms[own], end) - np.maximum(drawn.start_ms[own], start)
        assert overlap.max() <= 1e-9
    row = {row.name: row for row in metrics([plain, moved])}["helps"]
    assert row.values == ("none", str(len(moved.helps.actions)))
