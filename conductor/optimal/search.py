"""Search on one placement: order stretches of time anew, longer and longer, up to the whole step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Event, Thread

import numpy as np
from ortools.sat.python import cp_model

from conductor.ir.schedule import Int64Array, Schedule
from conductor.optimal.instance import Instance
from conductor.optimal.model import OrderModel
from conductor.optimal.windows import Windows

_FIRST_SIZE = 64
"""Actions in the first stretches."""
_GROWTH = 1.5
_COVERAGE = 3.0
"""A size has had its chance when its stretches in vain add up to so many times the whole step."""
_STRETCH_EFFORT = 2.0
"""Deterministic time for one stretch."""
_STRETCH_SHARE = 0.6
"""Of the time; the rest is for the whole step at once."""
_TICK_S = 0.1


class Budget:
    """Time to spend: of the clock, or the solver's deterministic time, which repeats exactly."""

    def __init__(self, limit_s: float, *, deterministic: bool) -> None:
        self.deterministic = deterministic
        self.limit_s = limit_s
        self._begin = time.perf_counter()
        self._spent = 0.0

    @property
    def left_s(self) -> float:
        """What is left."""
        spent = self._spent if self.deterministic else time.perf_counter() - self._begin
        return self.limit_s - spent

    def charge(self, solver: cp_model.CpSolver) -> None:
        """Counts a finished run of the solver, and a little for what goes with it."""
        self._spent += solver.response_proto.deterministic_time + 0.01


class PlacementSearch:
    """The best order so far on one placement, and the bound on all of them.

    Attributes:
        instance: the actions.
        starts: of the best order, units.
        value: of the best order, units.
        bound: no order has less, units.
    """

    def __init__(
        self,
        instance: Instance,
        windows: Windows,
        schedule: Schedule,
        *,
        stage_span: bool,
        workers: int,
        seed: int,
    ) -> None:
        self.instance = instance
        self.stage_span = stage_span
        self.starts = instance.starts_of(schedule)
        self.value = instance.value_of(self.starts, stage_span=stage_span)
        self.bound = min(windows.bound, self.value)
        self._windows = windows
        self._workers = workers
        self._rng = np.random.default_rng(seed)

    @property
    def value_ms(self) -> float:
        """Of the best order."""
        return self.instance.to_ms(self.value)

    @property
    def bound_ms(self) -> float:
        """No order has less."""
        return self.instance.to_ms(self.bound)

    def run(self, budget: Budget, rival_ms: float, report: Callable[[], None]) -> None:
        """Improves the order and the bound until they meet, or time is up, or a rival can't be beaten.

        Args:
            budget: what may be spent.
            rival_ms: value of the best order on other placements.
            report: called in this thread after changes and every so often.

        Raises:
            KeyboardInterrupt: after it has stopped the solver; what it has found so far is kept.
        """
        size, in_vain = float(_FIRST_SIZE), 0.0
        reserve = budget.left_s * (1.0 - _STRETCH_SHARE)
        while self.bound_ms < min(self.value_ms, rival_ms) and budget.left_s > 0.0:
            whole = size >= self.instance.num_actions or budget.left_s < reserve
            model = self._whole() if whole else self._stretch(int(size))
            value = self.value
            self._solve(model, budget, report, whole=whole)
            if whole:
                return
            in_vain = 0.0 if self.value < value else in_vain + size / self.instance.num_actions
            if in_vain > _COVERAGE:
                size, in_vain = size * _GROWTH, 0.0

    def _whole(self) -> OrderModel:
        end = int(self.starts.max()) + 1
        return OrderModel(
            self.instance, self._windows, self.starts, stretch=(0, end), stage_span=self.stage_span
        )

    def _stretch(self, size: int) -> OrderModel:
        """About `size` actions somewhere in the step; a part of them at its ends."""
        size = int(size * self._rng.uniform(0.5, 1.5))
        sorted_starts = np.sort(self.starts)
        last = len(sorted_starts) - 1
        first = int(self._rng.integers(-size // 2, len(sorted_starts) - size // 2))
        begin = int(sorted_starts[max(0, first)])
        end = int(sorted_starts[min(last, first + size)]) + 1
        return OrderModel(
            self.instance, self._windows, self.starts,
            stretch=(begin, end), stage_span=self.stage_span,
        )  # fmt: skip

    def _solve(
        self, model: OrderModel, budget: Budget, report: Callable[[], None], *, whole: bool
    ) -> None:
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.catch_sigint_signal = False
        parameters.random_seed = int(self._rng.integers(1 << 30))
        parameters.num_workers = self._workers if whole else 1
        parameters.interleave_search = budget.deterministic and parameters.num_workers > 1
        parameters.use_dynamic_precedence_in_disjunctive = True
        effort = float("inf") if whole else _STRETCH_EFFORT
        if budget.deterministic:
            parameters.max_deterministic_time = min(effort, budget.left_s)
        else:
            parameters.max_time_in_seconds = budget.left_s
            if not whole:
                parameters.max_deterministic_time = effort
        if whole:
            parameters.use_strong_propagation_in_disjunctive = True
            parameters.use_precedences_in_disjunctive_constraint = True
        else:
            parameters.linearization_level = 0
            parameters.randomize_search = True
        watcher = _Watcher(model)
        if whole:
            solver.best_bound_callback = watcher.note_bound
        ended = Event()

        def work() -> None:
            try:
                solver.solve(model.cp, watcher)
            finally:
                ended.set()

        # An event, because an interrupted Thread.join may take the thread for ended.
        Thread(target=work).start()
        try:
            while not ended.wait(_TICK_S):
                self._take(watcher)
                report()
        except BaseException:  # Ctrl-C, or a fault in the caller's report
            while not ended.wait(_TICK_S):
                solver.stop_search()
            raise
        finally:
            self._take(watcher)
        budget.charge(solver)
        if whole:
            self.bound = min(max(self.bound, round(solver.best_objective_bound)), self.value)
        report()

    def _take(self, watcher: _Watcher) -> None:
        """Keeps what the solver has found: orders that are no worse move the search on."""
        while watcher.found:
            starts = watcher.found.popleft()
            starts = self.instance.starts_of(self.instance.schedule_of(starts))
            value = self.instance.value_of(starts, stage_span=self.stage_span)
            if value <= self.value:
                self.starts, self.value = starts, value
        self.bound = min(max(self.bound, watcher.bound), self.value)


class _Watcher(cp_model.CpSolverSolutionCallback):
    """Takes down what the solver finds, in the solver's thread."""

    def __init__(self, model: OrderModel) -> None:
        super().__init__()
        self._model = model
        self.found: deque[Int64Array] = deque()
        self.bound = -(1 << 62)

    def on_solution_callback(self) -> None:
        """Called by the solver."""
        self.found.append(self._model.starts_in(self))

    def note_bound(self, bound: float) -> None:
        """Called by the solver."""
        self.bound = round(bound)
