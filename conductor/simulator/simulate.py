"""Simulation of a schedule under given durations."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from conductor.ir.schedule import FloatArray, Int32Array, Schedule
from conductor.problem.spec import PipelineSpec
from conductor.simulator.kernels import static_draws, static_starts
from conductor.simulator.program import Program, encode
from conductor.simulator.ready_first.kernels import ready_first, ready_first_draws
from conductor.simulator.timeline import Timeline
from conductor.simulator.timeline.kernels import summarise_draws

Execution = Literal["static", "ready-first"]
Executor = Callable[[Program, FloatArray], tuple[FloatArray, Int32Array]]
"""Another way to execute: what `execute` gives of a program and what keeps its ranks busy, shape (draws, n)."""

_CHUNK = 1 << 19
"""Actions whose times a thread holds at once, over all draws."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation:
    """What a schedule does over many draws.

    Attributes:
        makespan_ms: float64, shape (draws,).
        bubble_ratio: float64, shape (draws,); see `Timeline.bubble_ratio`.
        stage_span_ms: float64, shape (draws,); see `Timeline.stage_span_ms`.
        stage_span_bubble_ratio: float64, shape (draws,).
        idle_ms: float64, shape (len(IdleCause), num_ranks); mean over draws.
        busy_ms: float64, shape (num_ranks,); mean over draws.
        peak_memory: float64, shape (num_ranks,); maximum over draws.
    """

    makespan_ms: FloatArray
    bubble_ratio: FloatArray
    stage_span_ms: FloatArray
    stage_span_bubble_ratio: FloatArray
    idle_ms: FloatArray
    busy_ms: FloatArray
    peak_memory: FloatArray


def simulate(
    spec: PipelineSpec,
    schedule: Schedule,
    durations_ms: npt.ArrayLike | None = None,
    *,
    execution: Execution | Executor = "static",
) -> Simulation:
    """Runs a schedule once for each draw of durations, in parallel.

    Args:
        spec: expected times, links and memory; a rank-level profile is split over the stages.
        schedule: the order of each rank (static execution) or a hint of it (ready-first).
        durations_ms: realised durations in program order, shape (draws, n) or (n,); None is one draw of
            the expected ones. Blocking sends come on top.
        execution: `static`, `ready-first`, or any other way.

    Raises:
        InvalidSpecError: the spec gives other stages than the schedule has.
        InvalidScheduleError: the schedule is incomplete or deadlocks.
        ValueError: unknown execution, or durations of another shape.
    """
    program = encode(spec, schedule)
    busy = _busy(program, durations_ms)
    draws = len(busy)
    makespan, span, mean_busy = np.empty(draws), np.empty(draws), np.empty(draws)
    idle = np.zeros((4, program.num_ranks))
    busy_sum = np.zeros(program.num_ranks)
    peak = np.zeros(program.num_ranks)
    step = max(1, _CHUNK // program.num_actions)

    def run(part: slice) -> tuple[FloatArray, FloatArray, FloatArray]:
        starts, sequences = execute(program, busy[part], execution)
        ends = starts + busy[part]
        span[part], rank_busy, rank_idle, rank_peak = summarise_draws(
            starts, ends, sequences, program.rank_offsets, program.kinds, program.streams,
            program.inputs, program.input_lag_ms, program.allocated, program.freed,
            program.memory_limits,
        )  # fmt: skip
        makespan[part] = ends.max(axis=1)
        mean_busy[part] = rank_busy.mean(axis=1)
        return rank_idle.sum(axis=0), rank_busy.sum(axis=0), rank_peak.max(axis=0)

    # Threads of Python: those of a parallel kernel are OpenMP's, which PyTorch in the same process shares,
    # and they would make its small operations a hundred times slower.
    parts = [slice(first, first + step) for first in range(0, draws, step)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for rank_idle, rank_busy, rank_peak in (pool.map if len(parts) > 1 else map)(run, parts):
            idle += rank_idle
            busy_sum += rank_busy
            peak = np.maximum(peak, rank_peak)
    return Simulation(
        makespan_ms=makespan,
        bubble_ratio=_idle_shares(mean_busy, makespan),
        stage_span_ms=span,
        stage_span_bubble_ratio=_idle_shares(mean_busy, span),
        idle_ms=idle / draws,
        busy_ms=busy_sum / draws,
        peak_memory=peak,
    )


def timeline(
    spec: PipelineSpec,
    schedule: Schedule,
    durations_ms: npt.ArrayLike | None = None,
    *,
    execution: Execution | Executor = "static",
) -> Timeline:
    """Runs a schedule once. Arguments and errors as in `simulate`, durations of shape (n,)."""
    program = encode(spec, schedule)
    busy = _busy(program, durations_ms)
    if len(busy) != 1:
        raise ValueError(f"a timeline is of one draw of durations, not {len(busy)}")
    starts, sequences = execute(program, busy, execution)
    start, end = starts[0], starts[0] + busy[0]
    second = np.flatnonzero(program.overlaps) + 1
    start[second] = start[second - 1]
    return Timeline(
        spec=spec.on_stages(schedule.stage_ranks),
        schedule=schedule,
        program=program,
        start_ms=start,
        end_ms=end,
        sequence=sequences[0],
    )


def execute(
    program: Program, busy_ms: FloatArray, execution: Execution | Executor
) -> tuple[FloatArray, Int32Array]:
    """Starts of every action, and the order in which each rank ran its actions.

    Args:
        program: from `encode`.
        busy_ms: shape (draws, n), from `Program.busy_ms`.
        execution: `static`, `ready-first`, or any other way.

    Returns:
        Starts, shape (draws, n), program order; sequences of program indices, rank after rank, shape
        (draws, n), or (1, n) where all draws have the same.
    """
    if callable(execution):
        return execution(program, busy_ms)
    # One draw is not worth waking threads for.
    one = len(busy_ms) == 1
    if execution == "static":
        arrays = (
            program.order, program.rank_offsets, program.ranks, program.inputs,
            program.input_lag_ms,
        )  # fmt: skip
        same = np.arange(program.num_actions, dtype=np.int32)[None]
        if one:
            return static_starts(*arrays, busy_ms[0])[None], same
        return static_draws(*arrays, busy_ms), same
    if execution == "ready-first":
        tables = program.ready_tables()
        if one:
            start, sequence, count = ready_first(tables, busy_ms[0])
            starts, sequences, counts = start[None], sequence[None], np.array([count])
        else:
            starts, sequences, counts = ready_first_draws(tables, busy_ms)
        if (counts < program.num_actions).any():
            raise AssertionError("ready-first execution hangs on a schedule without deadlock")
        return starts, sequences
    raise ValueError(
        f"execution must be one of {', '.join(get_args(Execution))}, not {execution!r}"
    )


def _busy(program: Program, durations_ms: npt.ArrayLike | None) -> FloatArray:
    durations = program.duration_ms if durations_ms is None else np.asarray(durations_ms)
    if durations.ndim > 2 or durations.shape[-1] != program.num_actions:
        raise ValueError(
            f"durations must have the shape (draws, {program.num_actions}), not {durations.shape}"
        )
    return program.busy_ms(durations)


def _idle_shares(busy_ms: FloatArray, whole_ms: FloatArray) -> FloatArray:
    """A step that takes no time idles for none of it."""
    shares = np.zeros(len(whole_ms))
    np.divide(whole_ms - busy_ms, whole_ms, out=shares, where=whole_ms > 0.0)
    return shares
