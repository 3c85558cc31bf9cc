"""The exact model: variables, one method a constraint, objective."""

from __future__ import annotations

import numpy as np
from ortools.sat.python import cp_model

from conductor.ir.schedule import Int64Array
from conductor.optimal.instance import NO_LIMIT, Instance
from conductor.optimal.windows import Windows
from conductor.problem.kind import Kind


class OrderModel:
    """The orders that differ from a given one only in a stretch of time and are no worse, for CP-SAT.

    Actions that start within the stretch are free. Those before it keep their starts, those after it
    their order. A stretch that covers everything leaves every order open: then a proof of the solver's is
    one for the instance.

    Attributes:
        cp: the CP-SAT model; it minimises, from the given order as a hint.
        covers_all: whether every action is free.
    """

    def __init__(
        self,
        instance: Instance,
        windows: Windows,
        starts: Int64Array,
        *,
        stretch: tuple[int, int],
        stage_span: bool = False,
    ) -> None:
        """Builds the model.

        Args:
            instance: the actions.
            windows: of the instance, for the same objective.
            starts: of the given order, shape (n,), units, each as early as the order allows.
            stretch: where it begins (inclusive) and ends (exclusive), units.
            stage_span: minimise the longest span of a rank, not the makespan.
        """
        self.instance, self.windows = instance, windows
        self._given = starts
        self._before, self._after = starts < stretch[0], starts >= stretch[1]
        self._free = np.flatnonzero(~(self._before | self._after))
        self.covers_all = len(self._free) == instance.num_actions
        self._ceiling = instance.value_of(starts, stage_span=stage_span)
        self._horizon = int((starts + instance.busy).max()) + abs(self._ceiling)
        self.cp = cp_model.CpModel()
        heads, tails = self._heads(), self._tails()
        self._starts: list[cp_model.IntVar | int] = [int(start) for start in starts]
        for action in self._free.tolist():
            latest = self._ceiling - int(tails[action]) - int(instance.busy[action])
            variable = self.cp.new_int_var(int(heads[action]), latest, "")
            self.cp.add_hint(variable, int(starts[action]))
            self._starts[action] = variable
        self._inputs()
        self._one_at_a_time()
        self._memory()
        self._first_actions()
        self._value(tails, stage_span)

    def starts_in(
        self, value_of: cp_model.CpSolver | cp_model.CpSolverSolutionCallback
    ) -> Int64Array:
        """Starts that have the order of a solution, shape (n,).

        What comes after the stretch is moved behind everything else.
        """
        starts = self._given + np.where(self._after, self._horizon, 0)
        for action in self._free.tolist():
            starts[action] = value_of.value(self._starts[action])
        return starts

    def _end(self, action: int) -> cp_model.LinearExpr | int:
        return self._starts[action] + int(self.instance.busy[action])

    def _heads(self) -> Int64Array:
        """Earliest starts after what lies before the stretch."""
        instance = self.instance
        free_at = np.zeros(instance.spec.num_ranks, np.int64)
        before = np.flatnonzero(self._before)
        ends = self._given + instance.busy
        np.maximum.at(free_at, instance.ranks[before], ends[before])
        heads = np.maximum(self.windows.heads, free_at[instance.ranks])
        for first, second, lag in self.windows.arcs:
            if self._before[first]:
                heads[second] = max(heads[second], ends[first] + lag)
        return heads

    def _tails(self) -> Int64Array:
        """Least value after an action's end, by the fixed order behind the stretch."""
        instance, tails = self.instance, self.windows.tails.copy()
        outputs: dict[int, list[tuple[int, int]]] = {}
        for first, second, lag in self.windows.arcs:
            if self._after[second]:
                outputs.setdefault(first, []).append((second, lag))
        behind = np.full(instance.spec.num_ranks, tails.min())
        for action in np.lexsort((-self._given - instance.busy, -self._given)).tolist():
            rank = instance.ranks[action]
            tail = max(tails[action], behind[rank])
            for second, lag in outputs.get(action, ()):
                tail = max(tail, lag + instance.busy[second] + tails[second])
            tails[action] = tail
            if self._after[action]:
                behind[rank] = instance.busy[action] + tail
        return tails

    def _inputs(self) -> None:
        """Each action waits for its inputs, for the same on the micro-batch before it, and for memory."""
        free = set(self._free.tolist())
        for first, second, lag in self.windows.arcs:
            if first in free and second in free:
                self.cp.add(self._starts[second] >= self._end(first) + lag)

    def _one_at_a_time(self) -> None:
        """A rank runs one action at a time."""
        ranks = self.instance.ranks[self._free]
        for rank in range(self.instance.spec.num_ranks):
            self.cp.add_no_overlap(
                self.cp.new_fixed_size_interval_var(
                    self._starts[action], int(self.instance.busy[action]), ""
                )
                for action in self._free[ranks == rank].tolist()
            )

    def _memory(self) -> None:
        """A micro-batch's memory is held from its F to its W, but what I frees only to its I."""
        instance = self.instance
        for rank in range(instance.spec.num_ranks):
            limit = int(instance.limits[rank])
            if limit == NO_LIMIT:
                continue
            held, amounts = [], []
            for stage in np.flatnonzero(np.asarray(instance.spec.stage_ranks) == rank):
                forwards = instance.index[Kind.F, stage].tolist()
                for last in (Kind.I, Kind.W):
                    for first, end in zip(
                        forwards, instance.index[last, stage].tolist(), strict=True
                    ):
                        amount = int(instance.freed[end])
                        if not amount or self._after[first] or self._before[end]:
                            continue
                        begin = 0 if self._before[first] else self._starts[first]
                        finish = self._horizon if self._after[end] else self._end(end)
                        size = self.cp.new_int_var(0, self._horizon, "")
                        held.append(self.cp.new_interval_var(begin, size, finish, ""))
                        amounts.append(amount)
            if sum(amounts) > limit:
                self.cp.add_cumulative(held, amounts, limit)

    def _first_actions(self) -> None:
        """Each rank begins as soon as it can: its first action is the same in every order."""
        free = set(self._free.tolist())
        for first in self.instance.first_actions.tolist():
            inputs = [arc for arc in self.instance.arcs if arc[1] == first]
            if first in free:
                self.cp.add(
                    self._starts[first] == (self._end(inputs[0][0]) + inputs[0][2] if inputs else 0)
                )

    def _value(self, tails: Int64Array, stage_span: bool) -> None:
        """The value is the last action's end, or the longest time from a rank's first start to its end."""
        value = self.cp.new_int_var(self.windows.bound, self._ceiling, "value")
        firsts = self.instance.first_actions
        for action in self._free.tolist():
            self.cp.add(value >= self._end(action) + int(tails[action]))
            if stage_span:
                first = int(firsts[self.instance.ranks[action]])
                self.cp.add(value >= self._end(action) - self._starts[first])
        self.cp.minimize(value)
