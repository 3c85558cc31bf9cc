"""What a step's actions and helps tell of times: the profile that migration is planned from."""

from __future__ import annotations

import numpy as np

from conductor.ir.helps import Helps
from conductor.ir.schedule import FloatArray
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.runtime.exchange.help import StepHelps
from conductor.runtime.executor import ConductorSchedule
from conductor.simulator.timeline import Timeline

_OUTLIER = 1.1
"""A time counts for so much of the median at most: a burst is no profile."""
_LATE = 0.1
"""A start is late by so much of a mean action at most; what is more was waited for something else."""


def action_table(schedule: ConductorSchedule, report: StepHelps) -> FloatArray:
    """What this rank's actions take without help, shape (kinds, num_stages); 0 where nothing tells."""
    times = schedule.times
    assert times is not None
    samples: dict[tuple[Kind, int], list[float]] = {}
    first = int(schedule.plan.rank_offsets[schedule.rank])
    helped = {help_.action for help_ in report.helps}
    for index, action in enumerate(schedule.actions):
        whole = report.whole_ns.get(first + index)
        if whole is None and first + index not in helped:
            whole = times.end_ns[index] - times.start_ns[index]
        if whole is not None:
            samples.setdefault((action.kind, action.stage), []).append(whole / 1e6)
    table = np.zeros((len(Kind), schedule.plan.num_stages))
    for (kind, stage), values in samples.items():
        table[kind, stage] = np.minimum(values, _OUTLIER * np.median(values)).mean()
    return table


def start_delays_ms(times: Timeline, helps: Helps | None) -> FloatArray:
    """How late actions start after they could, shape (num_ranks,): the mean of each rank.

    An action could start when its rank was done with what it did before, helps with it, and its inputs had
    come over links as fast as the spec's. What is late is the runtime's own cost, messages among it.
    """
    program, order = times.program, times.sequence
    arrivals = times.end_ms[program.inputs] + program.input_lag_ms
    ready = np.where(program.inputs >= 0, arrivals, 0.0).max(axis=1)
    follows = program.ranks[order[1:]] == program.ranks[order[:-1]]
    after, before = order[1:][follows], order[:-1][follows]
    ready[after] = np.maximum(ready[after], times.end_ms[before])
    for lender, start, end in (
        () if helps is None else zip(helps.lenders, helps.start_ms, helps.end_ms, strict=True)
    ):
        own = order[program.ranks[order] == lender]
        place = int(np.searchsorted(times.start_ms[own], start))
        if place < len(own):
            ready[own[place]] = max(ready[own[place]], end)
    most = _LATE * float((times.end_ms - times.start_ms).mean())
    late = np.clip(times.start_ms - ready, 0.0, most)
    late[ready == 0.0] = 0.0
    counts = np.bincount(program.ranks, minlength=program.num_ranks)
    sums: FloatArray = np.bincount(program.ranks, late, minlength=program.num_ranks) / counts
    return sums


def link_ms(schedule: ConductorSchedule) -> float:
    """What a message from a neighbour took in the last step: the lower quartile; 0 where none came."""
    assert schedule.times is not None
    took = [entry for row in schedule.times.transfers.values() for entry in row]
    waited = [ms for ms, before in took if not before] or [ms for ms, _ in took]
    return float(np.quantile(waited, 0.25)) if waited else 0.0


def helps_of(reports: list[StepHelps], origin_ns: int, parts: int) -> Helps:
    """The helps that were done, on the clock of the measured timeline."""
    done = [h for report in reports for h in report.helps if h.outcome == "done"]

    def ms(values: list[int]) -> FloatArray:
        return (np.array(values, np.int64) - origin_ns) / 1e6

    return Helps(
        actions=np.array([h.action for h in done], np.int32),
        lenders=np.array([h.lender for h in done], np.int32),
        parts=np.array([round(h.parts) for h in done], np.int32),
        of_parts=parts,
        decided_ms=ms([h.decided_ns for h in done]),
        start_ms=ms([h.start_ns for h in done]),
        end_ms=ms([h.end_ns for h in done]),
    )


def profile(table: FloatArray, delays_ms: FloatArray, spec: PipelineSpec) -> FloatArray:
    """The table with what starts cost, full backwards from their halves, and the spec's times for gaps."""
    table = np.where(table > 0.0, table + delays_ms[list(spec.stage_ranks)], np.zeros_like(table))
    for kind in (Kind.F, Kind.I, Kind.W):
        gap = (table[kind] == 0.0) & ((table[Kind.B] == 0.0) | (kind is Kind.F))
        table[kind][gap] = spec.duration_ms[kind][gap]
    split = table[Kind.B] == 0.0
    table[Kind.B][split] = (table[Kind.I] + table[Kind.W])[split]
    return table


def by_rank(spec: PipelineSpec) -> FloatArray:
    """F and full backward of each rank's stages."""
    sums = np.zeros(spec.num_ranks)
    np.add.at(sums, list(spec.stage_ranks), spec.duration_ms[Kind.F] + spec.duration_ms[Kind.B])
    return sums
