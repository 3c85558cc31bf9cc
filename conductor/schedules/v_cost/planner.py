"""List schedules on the V placement: by due dates, or with another order as a hint."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from conductor.ir.schedule import FloatArray, Int64Array, Schedule
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.schedules.info import Objective
from conductor.schedules.memory import TOLERANCE, peak_memory, too_little
from conductor.schedules.ticks import in_ticks
from conductor.schedules.v_blocks import block_schedule
from conductor.schedules.v_cost.kernels import list_order


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Plan:
    """A planned order; plans compare by score, then age.

    Attributes:
        score: what the objective makes of it, in ticks; inf for one that got stuck.
        number: of the plan among its planner's.
        types: of each rank's actions, see `list_order`; shape (p, 6m).
        microbatches: shape (p, 6m).
        setting: the due dates it was made by; None for another order's hint.
    """

    score: float
    number: int
    types: Int64Array = field(compare=False)
    microbatches: Int64Array = field(compare=False)
    setting: FloatArray | None = field(compare=False)

    @property
    def key(self) -> bytes:
        """Equal for equal orders."""
        return self.types.tobytes() + self.microbatches.tobytes()

    def schedule(self, name: str) -> Schedule:
        """The plan under a name."""
        kinds = np.array([Kind.F, Kind.I, Kind.W])[self.types // 2]
        chunks = np.where(self.types >= 4, self.types - 2, self.types)
        return block_schedule(name, self.types.shape[1] // 6, kinds, chunks, self.microbatches)


class Planner:
    """Makes list schedules of one spec.

    A rank may hold as much as the fullest rank of the published order, relative to its stages, and no
    more than the spec allows.

    Args:
        spec: V placement, two stages a rank.
        published: complete, on this placement, W apart.
        objective: what plans are scored by.

    Raises:
        DoesNotFitError: some rank cannot hold one micro-batch of both its stages.
    """

    def __init__(self, spec: PipelineSpec, published: Schedule, objective: Objective) -> None:
        p = spec.num_ranks
        self.spec, self.objective, self.num_plans = spec, objective, 0
        self.busy, self.lag = in_ticks(spec)
        self.memory = spec.per_stage("activation_memory")
        both = self.memory[:p] + self.memory[: p - 1 : -1]
        held = np.divide(peak_memory(spec, published), both, out=np.ones(p), where=both > 0.0)
        self.limits = np.minimum(held.max() * both, spec.memory_limits) * (1.0 + TOLERANCE)
        if np.any(self.limits < both):
            rank = int(np.argmax(both - self.limits))
            raise too_little(published.name, rank, both[rank], spec.memory_limits[rank])
        work = self.busy.sum(axis=0)
        self.beat = float((work[:p] + work[: p - 1 : -1]).max())
        lag = np.append(self.lag, 0.0)
        forward, backward = self.busy[0] + np.roll(lag, 1), self.busy[1] + lag
        self.passes = np.stack(
            [forward[:p], forward[p:], backward[: p - 1 : -1], backward[p - 1 :: -1]]
        )
        """What each step of the four passes takes at least, in their order, shape (4, p)."""
        ends = np.cumsum(self.passes).reshape(4, p)
        first, second = ends[3, ::-1] - ends[0], ends[2] - ends[1, ::-1]
        share = np.divide(first, first + second, out=np.full(p, 0.5), where=first + second > 0.0)
        pairs = np.divide(self.limits, both, out=np.full(p, np.inf), where=both > 0.0)
        self.fair_share = 2.0 * share * np.minimum(pairs, spec.num_microbatches)
        """Micro-batches of the first chunk that a rank would hold in even flow, shape (p,)."""

    def by_due_dates(self, setting: FloatArray) -> Plan:
        """A plan by regular due dates.

        Args:
            setting: time allowed for each of the four passes over the least it takes; patience; beats
                after which W is due; share of `fair_share` held at most, and micro-batches more.
        """
        p, m = self.spec.num_ranks, self.spec.num_microbatches
        patience, weight_delay, share, more = setting[4:]
        due = np.cumsum(self.passes * setting[:4, None]).reshape(4, p)
        due[[1, 3]] = due[[1, 3], ::-1]
        due = np.concatenate([due, due[2:] + weight_delay * self.beat])
        return self._plan(
            due[:, :, None] + self.beat * np.arange(m),
            np.inf,
            patience,
            np.maximum(np.floor(share * self.fair_share + more), 1.0),
            setting,
        )

    def by_hint(
        self, types: Int64Array, microbatches: Int64Array, window: float, patience: float
    ) -> Plan:
        """A plan that takes the actions in a given order, or up to `window` places early."""
        p, size = types.shape
        due = np.empty((6, p, self.spec.num_microbatches))
        due[types, np.arange(p)[:, None], microbatches] = np.arange(size)
        return self._plan(due, window, patience, np.full(p, np.inf), None)

    def _plan(
        self,
        due: FloatArray,
        window: float,
        patience: float,
        most_up: FloatArray,
        setting: FloatArray | None,
    ) -> Plan:
        types, microbatches, makespan, span = list_order(
            self.busy, self.lag, self.memory, self.spec.freed_at_backward_input, self.limits,
            self.spec.num_microbatches, due, window, patience, most_up,
        )  # fmt: skip
        self.num_plans += 1
        return Plan(
            score=makespan if self.objective == "makespan" else span,
            number=self.num_plans,
            types=types,
            microbatches=microbatches,
            setting=setting,
        )
