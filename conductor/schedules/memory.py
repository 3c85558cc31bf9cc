"""Activation memory of a schedule in program order, and the check against the limits."""

from __future__ import annotations

import numpy as np

from conductor.errors import DoesNotFitError
from conductor.ir.schedule import FloatArray, Schedule
from conductor.problem.kind import KIND_RULES, Kind
from conductor.problem.spec import PipelineSpec
from conductor.simulator.program import freed_shares

TOLERANCE = 1e-9
"""Share of a limit by which sums of floats may miss it."""

_ALLOCATES = np.array([KIND_RULES[kind].allocates for kind in Kind])


def peak_memory(spec: PipelineSpec, schedule: Schedule) -> FloatArray:
    """Most activation memory that each rank holds when it runs its actions in order.

    Args:
        spec: with the schedule's stages.
        schedule: complete.

    Returns:
        Shape (num_ranks,), in the spec's unit.
    """
    memory = spec.per_stage("activation_memory")[schedule.stages] / schedule.num_splits
    taken = _ALLOCATES[schedule.kinds] * memory
    change = taken - freed_shares(spec)[schedule.kinds] * memory
    peaks = np.zeros(schedule.num_ranks)
    for rank in range(schedule.num_ranks):
        mine = slice(schedule.rank_offsets[rank], schedule.rank_offsets[rank + 1])
        held_before = np.cumsum(change[mine]) - change[mine]
        peaks[rank] = np.max(held_before + taken[mine], initial=0.0)
    return peaks


def check_memory(spec: PipelineSpec, schedule: Schedule) -> None:
    """Refuses a schedule that holds more than some rank may.

    Raises:
        DoesNotFitError: names the rank that misses most, and how much.
    """
    if spec.memory_limit is None:
        return
    peaks, limits = peak_memory(spec, schedule), spec.memory_limits
    if np.any(peaks > limits * (1.0 + TOLERANCE)):
        rank = int(np.argmax(peaks - limits))
        raise too_little(schedule.name, rank, float(peaks[rank]), float(limits[rank]))


def too_little(name: str, rank: int, needed: float, limit: float) -> DoesNotFitError:
    """The error of a schedule that needs more memory than a rank has."""
    error = DoesNotFitError(
        f"{name} needs {needed:.6g} of activation memory on rank {rank}, which has {limit:.6g}:"
        f" {needed - limit:.6g} is missing"
    )
    error.missing_memory = needed - limit
    return error


def planning_limits(spec: PipelineSpec, num_microbatches: int | None) -> FloatArray:
    """What a heuristic may hold: the spec's limits, and so many micro-batches of the fullest rank.

    Args:
        spec: with the schedule's stages.
        num_microbatches: None leaves the spec's limits alone.

    Returns:
        Shape (num_ranks,), a little generous, for sums of floats.
    """
    limits = spec.memory_limits
    if num_microbatches is not None:
        held = np.bincount(spec.stage_ranks, spec.per_stage("activation_memory"))
        limits = np.minimum(limits, num_microbatches * held.max())
    return limits * (1.0 + TOLERANCE)
