"""The plan a policy starts from."""

from __future__ import annotations

import numpy as np

from conductor.errors import DoesNotFitError
from conductor.ir.schedule import FloatArray, Int64Array, Schedule
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.rl.instance import Instance
from conductor.rl.play import Decider, play
from conductor.schedules.best import score_ms
from conductor.schedules.registry import POOL, SCHEDULES, adapt, build
from conductor.search.improve import improve
from conductor.simulator.program import Program
from conductor.variation import Variation

PLAN_DRAWS, PLAN_SEED = 256, 99


def best_plan(spec: PipelineSpec) -> Schedule:
    """The plan with the smallest expected makespan on the spec's own placement.

    All schedules that fit, and the order that the rule I before F before W makes: any spec has that one, and
    of equals it comes last.

    Raises:
        DoesNotFitError: some rank's memory holds less than one micro-batch.
    """
    return min(_plans(spec), key=lambda plan: round(score_ms(spec, plan, "makespan"), 9))


def robust_plan(spec: PipelineSpec, variation: Variation, evaluations: int) -> Schedule:
    """The plan that a search finds for the mean makespan over draws, from those `best_plan` chooses from.

    Args:
        spec: expected times; the plan is on its own placement.
        variation: what realised durations are drawn from; the draws are always the same.
        evaluations: orders that the search tries.
    """

    def draws(program: Program) -> FloatArray:
        return variation.sample(program, PLAN_DRAWS, np.random.default_rng(PLAN_SEED))

    found = improve(
        spec, _plans(spec), evaluations=evaluations, objective="mean", durations=draws
    )  # fmt: skip
    return found.schedule


def _plans(spec: PipelineSpec) -> list[Schedule]:
    plans = []
    for name in POOL:
        try:
            if adapt(SCHEDULES[name], spec).stage_ranks == spec.stage_ranks:
                plans.append(build(name, spec))
        except DoesNotFitError:
            continue
    plans = [plan for plan in plans if plan.num_splits == 1 and not plan.overlaps.any()]
    return [*plans, greedy_plan(spec)]


def greedy_plan(spec: PipelineSpec) -> Schedule:
    """The order in which ranks act that always start what they can, I before F before W."""
    instance = Instance.of(spec, _all_forwards_first(spec))
    end_ms = play(instance, instance.program.duration_ms, Decider.GREEDY).end_ms[0]
    return ordered(instance, end_ms).named("greedy")


def ordered(instance: Instance, end_ms: FloatArray) -> Schedule:
    """The schedule of a played episode: each rank's actions in the order in which they ended.

    Args:
        instance: what was played.
        end_ms: shape (n,), program order.
    """
    plan, order = instance.plan, sequence(instance, end_ms)
    return Schedule.from_arrays(
        name=plan.name,
        stage_ranks=plan.stage_ranks,
        num_microbatches=plan.num_microbatches,
        kinds=plan.kinds[order],
        stages=plan.stages[order],
        microbatches=plan.microbatches[order],
        rank_offsets=plan.rank_offsets,
    )


def sequence(instance: Instance, end_ms: FloatArray) -> Int64Array:
    """Actions of a played episode, rank after rank, in the order in which they ended, shape (n,).

    Of actions that end together the one that comes first by dependencies is in front.
    """
    arrays = instance.arrays
    return np.lexsort((np.argsort(arrays.order), end_ms, arrays.ranks))


def _all_forwards_first(spec: PipelineSpec) -> Schedule:
    """Every action in an order free of deadlock on any placement, whatever the memory."""
    stage_ranks = np.asarray(spec.stage_ranks)
    stages = np.arange(spec.num_stages)
    count = spec.num_microbatches
    kinds = np.repeat([Kind.F, Kind.I, Kind.W], spec.num_stages * count)
    stage = np.concatenate([stages, stages[::-1], stages[::-1]]).repeat(count)
    microbatch = np.tile(np.arange(count), 3 * spec.num_stages)
    order = np.argsort(stage_ranks[stage], kind="stable")
    ranks = stage_ranks[stage][order]
    return Schedule.from_arrays(
        name="all forwards first",
        stage_ranks=spec.stage_ranks,
        num_microbatches=count,
        kinds=kinds[order],
        stages=stage[order],
        microbatches=microbatch[order],
        rank_offsets=np.searchsorted(ranks, np.arange(spec.num_ranks + 1)),
    )
