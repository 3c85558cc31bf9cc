"""Timeline: actions with start and end, simulated or measured, and what they show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from conductor.errors import InvalidScheduleError
from conductor.ir.schedule import FloatArray, Int32Array, Schedule
from conductor.problem.spec import PipelineSpec
from conductor.simulator.program import Program, encode
from conductor.simulator.timeline.kernels import critical_path, idle_before, summarise


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """Actions with start and end, in milliseconds from the step's start.

    An overlapping pair (see `Schedule.overlaps`) stands side by side: both have the pair's start and end.

    Attributes:
        spec: the spec on the schedule's stages.
        schedule: the order that was planned.
        program: the schedule on the spec, encoded.
        start_ms: float64, shape (n,), program order.
        end_ms: float64, shape (n,), program order; a blocking send is part of the action.
        sequence: int32, shape (n,); program indices, rank after rank, in the order in which they ran.
    """

    spec: PipelineSpec
    schedule: Schedule
    program: Program
    start_ms: FloatArray
    end_ms: FloatArray
    sequence: Int32Array

    @classmethod
    def measured(
        cls,
        spec: PipelineSpec,
        schedule: Schedule,
        start_ms: npt.ArrayLike,
        end_ms: npt.ArrayLike,
    ) -> Timeline:
        """A timeline of measured times, in program order; each rank's order is that of the starts.

        Raises:
            InvalidScheduleError: the times are not one a action, or an end is before its start.
        """
        program = encode(spec, schedule)
        start = np.ascontiguousarray(start_ms, np.float64)
        end = np.ascontiguousarray(end_ms, np.float64)
        if start.shape != (program.num_actions,) or end.shape != start.shape:
            raise InvalidScheduleError(
                f"a timeline of {program.num_actions} actions needs as many starts and ends,"
                f" not {start.shape} and {end.shape}"
            )
        wrong = np.flatnonzero(~(end >= start))
        if len(wrong):
            raise InvalidScheduleError(f"{schedule.action(int(wrong[0]))} ends before it starts")
        return cls(
            spec=spec.on_stages(schedule.stage_ranks),
            schedule=schedule,
            program=program,
            start_ms=start,
            end_ms=end,
            sequence=np.lexsort((end, start, program.ranks)).astype(np.int32),
        )

    def _arrays(self) -> tuple[npt.NDArray[Any], ...]:
        program = self.program
        return (
            self.start_ms, self.end_ms, self.sequence, program.rank_offsets, program.kinds,
            program.streams, program.inputs, program.input_lag_ms, program.allocated,
            program.freed, program.memory_limits,
        )  # fmt: skip

    def _summary(self) -> tuple[float, FloatArray, FloatArray, FloatArray]:
        span, busy, idle, peak = summarise(*self._arrays())
        return float(span), busy, idle, peak

    @property
    def makespan_ms(self) -> float:
        """End of the last action."""
        return float(self.end_ms.max())

    @property
    def stage_span_ms(self) -> float:
        """Longest time from a rank's first start to its last end (the zero-bubble papers' cost)."""
        return self._summary()[0]

    @property
    def busy_ms(self) -> FloatArray:
        """Time that each rank is busy, shape (num_ranks,); overlapping pairs and sends count once."""
        return self._summary()[1]

    @property
    def bubble_ratio(self) -> float:
        """Share of the ranks' time up to the makespan in which they idle."""
        return _idle_share(self.busy_ms, self.makespan_ms)

    @property
    def stage_span_bubble_ratio(self) -> float:
        """The zero-bubble papers' bubble rate: as `bubble_ratio`, over the stage span."""
        return _idle_share(self.busy_ms, self.stage_span_ms)

    @property
    def bubble_over_ideal(self) -> float:
        """Idle time over busy time (Megatron's bubble fraction)."""
        busy = float(self.busy_ms.mean())
        return self.makespan_ms / busy - 1.0 if busy else 0.0

    @property
    def idle_ms(self) -> FloatArray:
        """Idle time by cause, shape (len(IdleCause), num_ranks); with `busy_ms` it sums to the makespan."""
        return self._summary()[2]

    @property
    def idle_before_ms(self) -> FloatArray:
        """Idle time right before each action by cause, shape (n, len(IdleCause)), program order.

        Of one gap, memory is the last part. Summed over a rank it is `idle_ms` but for what is left of
        the step after the rank's last action.
        """
        gaps: FloatArray = idle_before(*self._arrays())
        return gaps

    @property
    def peak_memory(self) -> FloatArray:
        """Highest activation memory of each rank, shape (num_ranks,)."""
        return self._summary()[3]

    @property
    def critical_path(self) -> Int32Array:
        """Program indices, first to last, of a chain of actions that leads up to the makespan.

        Each follows the one that held it up longest: an input or the rank's action before it.
        """
        program = self.program
        path: Int32Array = critical_path(
            self.end_ms, self.sequence, program.ranks, program.inputs, program.input_lag_ms,
            program.overlaps,
        )  # fmt: skip
        return path


def _idle_share(busy_ms: FloatArray, whole_ms: float) -> float:
    """A step that takes no time idles for none of it."""
    return 1.0 - float(busy_ms.mean()) / whole_ms if whole_ms else 0.0
