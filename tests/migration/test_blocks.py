"""The per-block model: what pieces cost, and what every run must keep."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conductor.errors import InvalidSpecError
from conductor.migration.blocks.advice import on_hardware
from conductor.migration.blocks.costs import PIECES, pieces
from conductor.migration.blocks.execution import (
    BlockModel,
    latest_block_starts,
    prepare_blocks,
    run,
    run_draws,
)
from conductor.migration.blocks.hardware import HARDWARE, Link, Topology, load_hardware
from conductor.migration.blocks.plan import place_weights, plan_blocks, wish
from conductor.migration.blocks.reference import BlockReference
from conductor.migration.blocks.shape import ModelShape
from conductor.migration.execution import MigrationRules
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.simulator.simulate import timeline
from tests.migration.uniform import uniform
from tests.strategies import durations, problems

GPT = ModelShape(hidden=6144, heads=48, sequence=1024, layers=62)
LLAMA = ModelShape(
    hidden=4096, heads=32, kv_heads=8, sequence=8192, mlp_width=14336, layers=32, matrices=3
)


def piece(shape, kind, name, layer_ms=1.0):
    return next(p for p in pieces(shape, kind, layer_ms) if p.name == name)


# Shapes.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hidden=100,heads=3,sequence=8,layers=2", "hidden = 100 does not divide by heads = 3"),
        (
            "hidden=64,heads=8,kv_heads=3,sequence=8,layers=2",
            "heads = 8 does not divide by kv_heads",
        ),
        (
            "hidden=64,heads=8,mlp_width=100,sequence=8,layers=2",
            "mlp_width = 100 does not divide by",
        ),
        ("hidden=64,heads=8,sequence=8", "needs layers"),
        ("hidden=64,heads=8,sequence=8,layers=2,depth=3", "has no 'depth'"),
        ("hidden=64,heads=8,sequence=long,layers=2", "sequence must be a whole number"),
        ("hidden=64,heads=0,sequence=8,layers=2", "heads must be at least 1"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(text, message):
    with pytest.raises(InvalidSpecError, match=message):
        ModelShape.parse(text)


def test_core_attention_is_sequence_over_twelve_hidden_of_the_matrices():
    flops = GPT.forward_flops()
    matrices = flops["qkv"] + flops["out"] + flops["mlp"]
    assert flops["core"] / matrices == pytest.approx(GPT.sequence / (12 * GPT.hidden))


# Bytes, by hand.


def test_heads_send_q_k_v_and_get_the_output():
    head = GPT.sequence * (GPT.hidden // GPT.heads) * 2
    forward, backward = piece(GPT, Kind.F, "heads"), piece(GPT, Kind.I, "heads")
    assert forward.round_trip_bytes(5) == 4 * 5 * head
    assert backward.round_trip_bytes(5) == 8 * 5 * head  # q, k, v, out, its gradient; three back
    assert forward.weight_part_bytes == backward.weight_part_bytes == 0


def test_groups_move_whole():
    head = LLAMA.sequence * 128 * 2
    forward = piece(LLAMA, Kind.F, "heads")
    assert forward.parts == 8
    assert forward.round_trip_bytes(1) == (4 + 1 + 1 + 4) * head


def test_slices_send_x_and_get_a_partial_sum_whatever_the_slice():
    x = GPT.sequence * GPT.hidden * 2
    forward = piece(GPT, Kind.F, "mlp")
    assert forward.in_bytes == forward.back_bytes == x
    assert forward.in_part_bytes == forward.back_part_bytes == 0
    assert forward.behind_part_bytes * 32 == GPT.sequence * GPT.mlp_width * 2
    assert forward.weight_part_bytes * 32 == 2 * GPT.hidden * GPT.mlp_width * 2


def test_all_projections_and_slices_hold_all_weights_of_a_layer():
    held = sum(p.weight_part_bytes * p.parts for p in pieces(GPT, Kind.F, 1.0) if p.name != "heads")
    assert held == 12 * GPT.hidden**2 * 2


def test_a_helped_block_by_hand():
    link = Link(name="link", gb_per_s=100.0, latency_ms=0.01)
    forward = piece(GPT, Kind.F, "mlp", layer_ms=3.0)
    x_ms = GPT.activation_bytes / 1e8
    remote = 2 * x_ms + 2 * 0.01 + forward.movable_ms * 10 / 32
    assert forward.block_ms(10, link) == pytest.approx(max(forward.movable_ms * 22 / 32, remote))


def test_slow_links_move_nothing():
    for kind in (Kind.F, Kind.I, Kind.W):
        for p in pieces(GPT, kind, 2.35):
            assert p.best_parts(Link(name="slow", gb_per_s=0.5, latency_ms=0.01)) == 0


# Hardware and topology.


def test_presets_know_all_links():
    assert set(HARDWARE) == {
        f"{gpu}-{link}"
        for gpu in ("a100", "h100", "h200")
        for link in ("nvlink", "pcie", "infiniband")
    }
    for machine in HARDWARE.values():
        assert machine.near.gb_per_s >= machine.far.gb_per_s


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1;2,9", "names rank 9, but there are 4 ranks"),
        ("0,1;1,2,3", "names rank 1 twice"),
        ("0,1;2", "leaves out rank 3"),
        ("0,1;two", "lists the ranks of each node"),
    ],
)
def test_a_topology_that_cannot_be_is_refused(text, message):
    with pytest.raises(InvalidSpecError, match=message):
        Topology.parse(text, 4)


def test_a_lenders_share_must_fit():
    with pytest.raises(InvalidSpecError, match="does not fit the 80 GB of h100-nvlink"):
        block_model(4, weight_budget_bytes=90e9)


# Runs.


def block_model(num_ranks, *, gb_per_s=None, **changes):
    machine = load_hardware("h100-nvlink")
    if gb_per_s is not None:
        machine = machine.with_bandwidth(gb_per_s)
    values = {
        "shape": ModelShape(hidden=4096, heads=32, sequence=2048, layers=16),
        "hardware": machine,
        "topology": Topology.even(num_ranks, 2),
    }
    return BlockModel(**(values | changes))


def everything_held(prepared):
    pieces_ = prepared.pieces
    return prepared.holding(
        np.broadcast_to(pieces_.parts[:, None, None], pieces_.held.shape).astype(np.int32)
    )


@st.composite
def block_runs(draw):
    """A prepared problem of any shape, with weights everywhere, and a step of it."""
    spec, schedule = draw(problems(max_ranks=5, max_microbatches=4))
    model = block_model(
        spec.num_ranks,
        gb_per_s=draw(st.sampled_from((20.0, 200.0, 5000.0))),
        topology=Topology.even(
            spec.num_ranks, draw(st.integers(1, 3)), shared_port=draw(st.booleans())
        ),
    )
    execution = "static" if schedule.overlaps.any() else draw(
        st.sampled_from(("static", "ready-first"))
    )  # fmt: skip
    prepared = prepare_blocks(spec, schedule, model, execution=execution)
    rules = MigrationRules(
        max_lenders=draw(st.integers(1, 3)),
        min_gain=draw(st.sampled_from((0.0, 0.05, 0.3))),
        latest_start_ms=latest_block_starts(prepared),
        delay_share=draw(st.sampled_from((0.0, 0.5, 1.0))),
    )
    prepared = everything_held(prepared.with_rules(rules))
    seed = draw(st.integers(0, 2**32))
    realised = durations(prepared.base.program.duration_ms, seed)[0]
    return prepared, realised, run(prepared, realised)


@settings(max_examples=80)
@given(block_runs())
def test_no_way_carries_two_messages_at_once(case):
    """One message at a time at the link's full bandwidth: no link is over it."""
    _, _, step = case
    for way in (0, 1):
        for port in np.unique(step.messages[:, way]):
            spans = step.messages[step.messages[:, way] == port][:, 2:]
            spans = spans[spans[:, 1] > spans[:, 0]]
            spans = spans[np.argsort(spans[:, 0])]
            assert (spans[1:, 0] >= spans[:-1, 1] - 1e-9).all()


@settings(max_examples=80)
@given(block_runs())
def test_nobody_does_two_things_at_once(case):
    prepared, _, step = case
    offsets = prepared.base.program.rank_offsets
    for rank in range(prepared.base.program.num_ranks):
        own = np.arange(*offsets[rank : rank + 2])
        lent = step.helps[step.helps[:, 1] == rank]
        assert not np.isin(lent[:, 0], own).any()
        spans = np.concatenate(
            [np.stack([step.start_ms[own], step.end_ms[own]], axis=1), lent[:, 4:6]]
        )
        spans = spans[spans[:, 1] > spans[:, 0]]
        spans = spans[np.argsort(spans[:, 0])]
        assert (spans[1:, 0] >= spans[:-1, 1] - 1e-9).all()


@settings(max_examples=80)
@given(block_runs())
def test_work_is_conserved(case):
    """A lender's time for its parts is theirs; what stays takes the rank at least its time."""
    prepared, realised, step = case
    base, pieces_ = prepared.base, prepared.pieces
    own, factors = (array[0] for array in base.realise(realised))
    moved = np.zeros(len(own))
    for action, lender, piece_, parts, start, end, _ in step.helps:
        i, j, p = int(action), int(lender), int(piece_)
        kind, stage = base.costs.kinds[i], base.costs.stages[i]
        layer = base.layout.duration_ms[i] / pieces_.layers[stage]
        part = pieces_.share[kind, p, 1] * layer * parts / pieces_.parts[p]
        moved[i] += part
        twin = base.costs.where[kind, base.costs.stand_in[stage, j], base.costs.units[i]]
        ratio = base.costs.lend_ms[kind, stage, j] / base.layout.duration_ms[i]
        factor = factors[twin if twin >= 0 else i]
        assert end - start == pytest.approx(part * ratio * factor, abs=1e-9)
    assert moved.sum() == pytest.approx(step.moved_ms)
    assert (moved <= base.layout.duration_ms + 1e-9).all()
    took = step.end_ms - step.start_ms - base.layout.send_ms
    movable = base.costs.movable > 0.0
    stays = (base.layout.duration_ms - moved) * factors
    assert (took[movable] >= stays[movable] - 1e-6).all()


@settings(max_examples=80)
@given(block_runs())
def test_inputs_arrive_before_actions_start(case):
    prepared, _, step = case
    program = prepared.base.program
    second = np.flatnonzero(program.overlaps) + 1
    for slot in range(program.inputs.shape[1]):
        used = np.setdiff1d(np.flatnonzero(program.inputs[:, slot] >= 0), second)
        arrival = step.end_ms[program.inputs[used, slot]] + program.input_lag_ms[used, slot]
        assert (step.start_ms[used] >= arrival - 1e-9).all()


@given(problem=problems(max_ranks=4, max_microbatches=4), seed=st.integers(0, 2**32))
def test_without_help_and_links_it_is_static_execution(problem, seed):
    spec, schedule = problem
    spec = spec.with_(transfer_ms=0.0)
    idle = MigrationRules(most_parts=0)
    prepared = prepare_blocks(spec, schedule, block_model(spec.num_ranks), rules=idle)
    expected = timeline(spec, schedule).makespan_ms
    assert run(prepared).makespan_ms == pytest.approx(expected, abs=1e-9)


def test_one_helped_forward_by_hand():
    """Rank 1 waits for rank 0's only forward and helps with every block of it."""
    spec = PipelineSpec(
        num_ranks=2, num_microbatches=1, forward_ms=8.0, backward_input_ms=8.0,
        backward_weight_ms=6.0,
    )  # fmt: skip
    model = block_model(2, pieces=("mlp",), gb_per_s=1000.0)
    rules = MigrationRules(max_lenders=1)
    prepared = prepare_blocks(spec, build("zb-1p", spec), model, rules=rules)
    held = prepared.pieces.held.copy()
    held[PIECES.index("mlp"), 1, 0] = 32
    free = prepared.holding(held)
    free = type(free)(
        base=free.base,
        model=model,
        pieces=free.pieces._replace(weight_bytes=np.zeros(4)),
    )
    step = run(free)
    (mlp,) = model.stage_pieces(Kind.F, 8.0, 2)
    attention = 1.0 - mlp.alone_ms
    block = min(mlp.block_ms(q, model.hardware.near) for q in range(33))
    forward = int(np.flatnonzero(prepared.base.costs.kinds == Kind.F)[0])
    # What follows behind the result never delays the next block's message here: other way.
    assert step.end_ms[forward] == pytest.approx(8 * (attention + block), abs=1e-6)


def test_draws_are_single_runs():
    spec = uniform(4, 8, 4)
    prepared = everything_held(prepare_blocks(spec, build("zb", spec), block_model(4)))
    realised = durations(prepared.base.program.duration_ms, 3, draws=4)
    draws = run_draws(prepared, realised)
    assert draws.makespan_ms.tolist() == [run(prepared, row).makespan_ms for row in realised]


@pytest.mark.parametrize("budget", [0.0, 0.2e9, 1e9])
def test_no_lender_holds_more_than_its_budget(budget):
    spec = uniform(4, 8, 4)
    prepared = prepare_blocks(spec, build("zb", spec), block_model(4))
    placed = place_weights(prepared, wish(prepared), budget)
    assert (placed.held_bytes <= budget).all()
    assert (placed.held_bytes > 0.0).any() == (budget > 0.0)


@pytest.mark.parametrize("gb_per_s", [1.0, 16.0, 100.0, 450.0])
def test_a_plan_is_never_worse_than_none(gb_per_s):
    model = block_model(4, gb_per_s=gb_per_s)
    spec = on_hardware(uniform(4, 8, 4), model)
    plan = plan_blocks(spec, model, [build("zb", spec)])
    assert plan.plan_ms <= plan.without_ms
    assert (plan.prepared.held_bytes <= model.weight_budget_bytes).all()
    if gb_per_s == 450.0:
        assert plan.plan_ms < 0.95 * plan.without_ms


@settings(max_examples=80)
@given(block_runs())
def test_kernel_equals_reference(case):
    prepared, realised, step = case
    expected = BlockReference(prepared, realised)
    assert step.makespan_ms == expected.makespan_ms
    assert step.start_ms.tolist() == [action.start_ms for action in expected.actions]
    assert step.end_ms.tolist() == [action.end_ms for action in expected.actions]
    assert [tuple(row) for row in step.helps[:, :6].tolist()] == expected.rows
    assert [tuple(row) for row in step.messages[:, 2:].tolist()] == expected.messages


@settings(max_examples=60)
@given(block_runs(), st.integers(0, 2**32))
def test_decisions_do_not_see_the_future(case, seed):
    """Two worlds that differ in actions that have not begun help alike until then."""
    prepared, realised, step = case
    base = prepared.base
    assume(not base.program.overlaps.any())
    rng = np.random.default_rng(seed)
    moment = float(rng.uniform(0.0, step.makespan_ms + 1.0))
    told = step.helps[step.helps[:, 4] <= moment]
    action, lender = told[:, 0].astype(int), told[:, 1].astype(int)
    stage = base.costs.stand_in[base.costs.stages[action], lender]
    twins = base.costs.where[base.costs.kinds[action], stage, base.costs.units[action]]
    # A help varies as the lender's own action does, and may have been felt since its block began.
    hidden = (step.start_ms > moment) & ~np.isin(np.arange(len(realised)), twins)
    other = np.where(hidden, realised * rng.uniform(1.0, 3.0, len(realised)), realised)
    again = run(prepared, other).helps
    assert again[again[:, 4] <= moment][:, :5].tolist() == told[:, :5].tolist()
