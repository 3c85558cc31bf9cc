"""The planner of the per-block model: which weights lie where, and who lends to whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from conductor.errors import DoesNotFitError
from conductor.ir.schedule import Schedule
from conductor.migration.blocks.execution import (
    BlockDraws,
    BlockModel,
    PreparedBlocks,
    latest_block_starts,
    prepare_blocks,
    run_draws,
)
from conductor.migration.execution import Execution, MigrationRules
from conductor.migration.plan import starting_orders
from conductor.problem.spec import PipelineSpec

DELAY_SHARES = (0.0, 0.25, 0.5)
ROUNDS = 2
MIN_GAINS = (0.05, 0.2, 0.35, 0.5)
BUDGETS = (1.0, 0.5, 0.2, 0.1, 0.05)
"""Shares of the lenders' budget worth trying: weights cost time on the links too."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockPlan:
    """An order with its migration under the per-block model.

    Attributes:
        prepared: ready to run, weights placed.
        schedule: the order.
        execution: static or ready-first.
        rules: how ranks decide; `most_parts` 0 where nothing pays.
        step: one step with the expected durations.
        plan_ms: its makespan.
        without_ms: makespan of the same order without migration.
    """

    prepared: PreparedBlocks
    schedule: Schedule
    execution: Execution
    rules: MigrationRules
    step: BlockDraws
    plan_ms: float
    without_ms: float


def plan_blocks(
    spec: PipelineSpec,
    model: BlockModel,
    schedules: Iterable[Schedule] | None = None,
    *,
    executions: tuple[Execution, ...] = ("static",),
) -> BlockPlan:
    """Plans migration on the best of some orders.

    For each order: a step in which every rank holds all weights shows who would lend what to whom; the
    weights that save most for their size are then placed within the budget of each lender, and the step
    is planned again with what their transfer costs. Where nothing gains, nothing moves.

    Args:
        spec: the problem, or its rank-level profile.
        model: the per-block model.
        schedules: orders to start from; None is `starting_orders(spec)`.
        executions: ways to execute them.

    Raises:
        DoesNotFitError: there is no order to start from.
    """
    best: BlockPlan | None = None
    for schedule in starting_orders(spec) if schedules is None else schedules:
        for execution in executions:
            if execution == "ready-first" and schedule.overlaps.any():
                continue
            for candidate in _candidates(spec, schedule, execution, model):
                if best is None or candidate.plan_ms < best.plan_ms:
                    best = candidate
    if best is None:
        raise DoesNotFitError(f"no order to start from fits {spec.name!r}")
    return best


def _candidates(
    spec: PipelineSpec, schedule: Schedule, execution: Execution, model: BlockModel
) -> Iterable[BlockPlan]:
    idle = MigrationRules(most_parts=0)
    base = prepare_blocks(spec, schedule, model, rules=idle, execution=execution)
    alone = run_draws(base)
    without = float(alone.makespan_ms[0])

    def plan(prepared: PreparedBlocks, rules: MigrationRules, step: BlockDraws) -> BlockPlan:
        return BlockPlan(
            prepared=prepared, schedule=schedule, execution=execution, rules=rules, step=step,
            plan_ms=float(step.makespan_ms[0]), without_ms=without,
        )  # fmt: skip

    yield plan(base, idle, alone)
    for share in DELAY_SHARES:
        latest = latest_block_starts(base)
        for _ in range(ROUNDS if share else 1):
            best = None
            for gain in MIN_GAINS:
                rules = MigrationRules(
                    max_lenders=2, min_gain=gain, latest_start_ms=latest, delay_share=share
                )
                able = base.with_rules(rules)
                wanted = wish(able)
                for part in BUDGETS:
                    placed = place_weights(able, wanted, part * model.weight_budget_bytes)
                    candidate = plan(placed, rules, run_draws(placed))
                    yield candidate
                    if best is None or candidate.plan_ms < best.plan_ms:
                        best = candidate
            assert best is not None
            latest = 0.5 * (latest + latest_block_starts(best.prepared))


def wish(prepared: PreparedBlocks) -> BlockDraws:
    """A step in which every rank holds all weights, for nothing."""
    pieces = prepared.pieces
    everything = np.broadcast_to(pieces.parts[:, None, None], pieces.held.shape).astype(np.int32)
    return run_draws(
        replace(
            prepared,
            pieces=pieces._replace(
                held=everything,
                weight_bytes=np.zeros_like(pieces.weight_bytes),
                gradient_bytes=np.zeros_like(pieces.gradient_bytes),
            ),
        )
    )


def place_weights(
    prepared: PreparedBlocks, wanted: BlockDraws, budget_bytes: float
) -> PreparedBlocks:
    """Places the weights that save most time for their bytes, until a rank's budget is spent.

    Args:
        prepared: what will run.
        wanted: a step without limits, which shows what would be used.
        budget_bytes: weights and gradients that a rank may hold of others' stages.
    """
    pieces = prepared.pieces
    each = (pieces.weight_bytes + pieces.gradient_bytes)[:, None, None]
    size = each * pieces.layers * wanted.most_parts
    held = np.where(each == 0.0, pieces.held, 0).astype(np.int32)
    worth = np.divide(wanted.saved_ms, size, out=np.zeros(held.shape), where=size > 0.0)
    left = np.full(held.shape[1], budget_bytes)
    for flat in np.argsort(-worth, axis=None, kind="stable"):
        place = np.unravel_index(flat, held.shape)
        if worth[place] <= 0.0:
            break
        if size[place] <= left[place[1]]:
            left[place[1]] -= size[place]
            held[place] = wanted.most_parts[place]
    return prepared.holding(held)
