"""Walk: one start of the search, its orders and its best."""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import FloatArray, Int32Array, Schedule
from conductor.search.kernels import Problem, State, anneal, evaluate
from conductor.simulator.program import Program

TOLERANCE = 1e-9
"""Share of a memory limit by which sums of floats may miss it."""


class Walk:
    """A simulated annealing over the orders of one start.

    Attributes:
        schedule: the start.
        best_value: of the best order so far; inf where the start itself needs too much memory.
    """

    def __init__(
        self,
        schedule: Schedule,
        program: Program,
        busy_ms: FloatArray,
        *,
        is_span: bool = False,
        tail_share: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Evaluates the start.

        Args:
            schedule: without overlapping pairs.
            program: of the schedule.
            busy_ms: shape (draws, n), from `Program.busy_ms`.
            is_span: minimises the stage span, not the makespan.
            tail_share: 0 minimises the mean over draws, 0.05 the 95th percentile.
            seed: of every choice.
        """
        n, num_ranks, num_draws = program.num_actions, program.num_ranks, len(busy_ms)
        size = n + 1 + num_ranks
        used = max(
            1, (program.inputs >= 0).sum(axis=1).max(), (program.outputs >= 0).sum(axis=1).max()
        )
        busy = np.zeros((size, num_draws))
        busy[:n] = busy_ms.T
        streams = np.full(size, -1, np.int32)
        streams[:n] = program.streams
        first = program.rank_offsets[:-1] + 2 * np.arange(num_ranks) + 1
        last = program.rank_offsets[1:] + 2 * np.arange(num_ranks)
        self.schedule = schedule
        self._problem = Problem(
            first=first,
            last=last,
            ranks=program.ranks.astype(np.int64),
            streams=streams,
            busy=busy,
            inputs=_columns(program.inputs, used, n),
            lags=program.input_lag_ms[:, :used].copy(),
            outputs=_columns(program.outputs, used, n),
            output_lags=program.output_lag_ms[:, :used].copy(),
            allocated=program.allocated,
            freed=program.freed,
            limits=program.memory_limits * (1.0 + TOLERANCE),
            is_span=is_span,
            tail_share=tail_share,
        )
        row = np.full(n + 2 * num_ranks, n, np.int32)
        for rank in range(num_ranks):
            start, end = program.rank_offsets[rank : rank + 2]
            row[first[rank] : last[rank] + 1] = np.arange(start, end)
            row[last[rank] + 1] = n + 1 + rank
        self._state = State(
            row=row,
            place=np.zeros(n, np.int64),
            order=program.order.copy(),
            position=np.zeros(size, np.int32),
            memory=np.zeros(len(row)),
            end=np.zeros((size, num_draws)),
            tail=np.zeros(size),
            path=np.zeros(n, np.int32),
            rng=np.random.SeedSequence(seed).generate_state(1, np.uint64) | np.uint64(1),
            saved_row=row.copy(),
            saved_end=np.zeros(max(n, num_draws)),
            saved_tail=np.zeros(n),
            queue=np.zeros(n, np.int32),
            waiting=np.zeros(n, np.int32),
            stamp=np.zeros(size, np.int8),
            trial=np.zeros((size if num_draws > 1 else 1, num_draws)),
            values=np.zeros(num_draws),
        )
        self._scale_ms = float(busy_ms.mean())
        self._best_row = row.copy()
        self._values = np.full(2, float(evaluate(self._problem, self._state)))
        self._progress = np.zeros(3, np.int64)
        self._round = (0, 1.0, 1.0)

    @property
    def best_value(self) -> float:
        """The objective of the best order so far."""
        return float(self._values[1])

    def begin_round(self, length: int, hot: float, cold: float, *, from_best: bool = False) -> None:
        """Heats up.

        Args:
            length: evaluations in the round.
            hot: temperature at its start, in mean action times.
            cold: temperature at its end, in mean action times.
            from_best: returns to the best order first.
        """
        if from_best:
            self._state.row[:] = self._best_row
        self._values[0] = evaluate(self._problem, self._state)
        self._progress[:] = 0
        self._round = (length, hot * self._scale_ms, cold * self._scale_ms)

    def advance(self, evaluations: int, target: float = -np.inf) -> int:
        """Evaluates orders of the round.

        Args:
            evaluations: how many.
            target: stops when the best is as good as this.

        Returns:
            How many it did: fewer at the end of the round, at the target, or where no move is left.
        """
        evaluations = min(evaluations, self._round[0] - int(self._progress[0]))
        return int(
            anneal(
                self._problem, self._state, self._best_row, self._values, self._progress,
                evaluations, *self._round, target,
            )
        )  # fmt: skip

    @property
    def best_schedule(self) -> Schedule:
        """The best order so far; the start itself where nothing better was found."""
        return self._schedule(self._best_row)

    @property
    def present(self) -> tuple[Schedule, float]:
        """The order that the walk stands at, and its objective."""
        return self._schedule(self._state.row), float(self._values[0])

    def _schedule(self, row: Int32Array) -> Schedule:
        start = self.schedule
        ids = row[row < start.num_actions]
        if np.array_equal(ids, np.arange(len(ids))):
            return start
        return Schedule.from_arrays(
            name=f"{start.name}+search",
            stage_ranks=start.stage_ranks,
            num_microbatches=start.num_microbatches,
            num_splits=start.num_splits,
            kinds=start.kinds[ids],
            stages=start.stages[ids],
            microbatches=start.microbatches[ids],
            splits=start.splits[ids],
            rank_offsets=start.rank_offsets,
        )


def _columns(table: Int32Array, used: int, sentinel: int) -> Int32Array:
    """The used columns of a table of indices; -1 becomes the sentinel."""
    return np.ascontiguousarray(np.where(table < 0, sentinel, table)[:, :used], np.int32)
