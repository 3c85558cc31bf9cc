"""What a job lost to stragglers, to whom, and what each remedy would give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conductor.ir.schedule import BoolArray, FloatArray
from conductor.ir.trace import COMPUTE, LABELS, Operation, Trace
from conductor.whatif.durations import ideal_durations, own_durations
from conductor.whatif.graph import Graph
from conductor.whatif.receives import graph_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One thing that could be done.

    Attributes:
        name: what.
        step_ms: mean step time with it.
        gain: share of the replayed step time that it saves.
    """

    name: str
    step_ms: float
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WhatIf:
    """A job as traced, replayed and without stragglers.

    The slowdown of a group is the step time with the group's operations as they were and all others
    ideal, over the ideal step time. Ideal is an average, so it may lie below 1.

    Attributes:
        graph: the trace with its dependencies.
        own_ms: duration of each operation without waiting, in the graph's order.
        ideal_ms: likewise, if all of a kind were alike.
        traced_ms: time of each step as traced, shape (steps,).
        replay_ms: in the replay, without launch delays.
        ideal_step_ms: in the replay of ideal durations.
        slowdown: mean replayed over mean ideal step time.
        by_stage: of each pipeline rank's operations.
        by_dp_rank: of each replica's.
        by_worker: of each rank of each replica's, by (replica, pipeline rank).
        by_kind: of each kind of operation.
        by_step: of each step: its replayed over its ideal time.
        remedies: what would help; filled by `remedies`.
    """

    graph: Graph
    own_ms: FloatArray
    ideal_ms: FloatArray
    traced_ms: FloatArray
    replay_ms: FloatArray
    ideal_step_ms: FloatArray
    by_stage: dict[int, float]
    by_dp_rank: dict[int, float]
    by_worker: dict[tuple[int, int], float]
    by_kind: dict[str, float]

    @property
    def slowdown(self) -> float:
        """Mean replayed over mean ideal step time."""
        return float(self.replay_ms.mean() / self.ideal_step_ms.mean())

    @property
    def by_step(self) -> dict[int, float]:
        """Of each step: its replayed over its ideal time."""
        ratios = self.replay_ms / self.ideal_step_ms
        return dict(zip(self.graph.step_numbers.tolist(), ratios.tolist(), strict=True))

    @property
    def replay_error(self) -> float:
        """How far the mean replayed step time is from the traced one, as a share of it."""
        return float(self.replay_ms.mean() / self.traced_ms.mean() - 1.0)

    def share(self, group: float) -> float:
        """Which share of the slowdown a group's own slowdown explains."""
        lost = self.slowdown - 1.0
        return (group - 1.0) / lost if lost > 0.0 else 0.0

    def with_ideal(self, chosen: BoolArray) -> float:
        """Mean step time if the chosen operations took their ideal time and all others their own."""
        return float(self.graph.step_ms(np.where(chosen, self.ideal_ms, self.own_ms)).mean())

    def remedy(self, name: str, step_ms: float) -> Remedy:
        """A remedy of a given mean step time."""
        step_ms = float(step_ms)
        return Remedy(name=name, step_ms=step_ms, gain=1.0 - step_ms / float(self.replay_ms.mean()))


def analyse(trace: Trace) -> WhatIf:
    """Replays a job as it was and with all but one cause of delay ideal.

    Raises:
        FormatError: the operations' times contradict each other.

    Source: the method of arXiv 2505.05713.
    """
    graph = graph_of(trace)
    trace = graph.trace
    own = own_durations(graph)
    ideal = ideal_durations(graph, own)
    ideal_step = graph.step_ms(ideal)
    traced = np.zeros(len(graph.step_numbers))
    np.maximum.at(traced, graph.step_index, trace.end_ms)

    def alone(chosen: BoolArray) -> float:
        return float(graph.step_ms(np.where(chosen, own, ideal)).mean() / ideal_step.mean())

    def by(column: npt.NDArray[np.integer]) -> dict[int, float]:
        return {int(value): alone(column == value) for value in np.unique(column)}

    labels = np.array([LABELS[operation] for operation in Operation])[trace.operations]
    workers = by(trace.dp_ranks.astype(np.int64) * trace.num_ranks + trace.ranks)
    return WhatIf(
        graph=graph,
        own_ms=own,
        ideal_ms=ideal,
        traced_ms=traced,
        replay_ms=graph.step_ms(own),
        ideal_step_ms=ideal_step,
        by_stage=by(trace.ranks),
        by_dp_rank=by(trace.dp_ranks),
        by_worker={divmod(number, trace.num_ranks): ratio for number, ratio in workers.items()},
        by_kind={str(label): alone(labels == label) for label in np.unique(labels)},
    )


def straggler_remedies(found: WhatIf) -> list[Remedy]:
    """What it would give if the worst rank, kind, replica or worker, communication, or all were ideal."""
    trace = found.graph.trace
    stage = max(found.by_stage, key=found.by_stage.__getitem__)
    dp_rank, rank = max(found.by_worker, key=found.by_worker.__getitem__)
    communication = ~np.isin(trace.operations, list(COMPUTE))
    chosen = {f"rank {stage} like the others": trace.ranks == stage}
    kind = max(found.by_kind, key=found.by_kind.__getitem__)
    chosen[f"{kind} always at its average"] = np.array(
        [LABELS[operation] == kind for operation in Operation]
    )[trace.operations]
    if len(found.by_dp_rank) > 1:
        replica = max(found.by_dp_rank, key=found.by_dp_rank.__getitem__)
        chosen[f"replica {replica} like the others"] = trace.dp_ranks == replica
        chosen[f"rank {rank} of replica {dp_rank} like the others"] = (
            trace.dp_ranks == dp_rank
        ) & (trace.ranks == rank)
    chosen["communication always at its median"] = communication
    return [
        found.remedy("no stragglers at all", float(found.ideal_step_ms.mean())),
        *(found.remedy(name, found.with_ideal(mine)) for name, mine in chosen.items()),
    ]
