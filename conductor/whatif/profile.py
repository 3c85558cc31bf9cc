"""From a trace to what a planner needs: the order that was run, and the expected times."""

from __future__ import annotations

import numpy as np

from conductor.errors import ConductorError, FormatError
from conductor.ir.schedule import BoolArray, FloatArray, Schedule
from conductor.ir.trace import Operation, Trace
from conductor.ir.validate import validate
from conductor.problem.kind import Kind
from conductor.problem.placement import PlacementName
from conductor.problem.spec import PipelineSpec
from conductor.simulator.simulate import timeline
from conductor.simulator.timeline import Timeline
from conductor.whatif.durations import own_durations
from conductor.whatif.graph import Graph

INPUT_SHARE = 10.0 / 17.0
"""Share of a full backward that is for the input, where the trace does not say: that of the 28.3B profile of
the zero-bubble paper."""


def traced_schedule(trace: Trace, step: int | None = None, dp_rank: int | None = None) -> Schedule:
    """The order in which the ranks of one replica ran their actions in one step.

    Args:
        trace: where it is from.
        step: as the trace numbers it; None is the first with as many actions as any.
        dp_rank: None is the first.

    Raises:
        FormatError: that step is not there or not whole.
    """
    chosen = one_step(trace, step, dp_rank)
    stage_ranks = np.zeros(trace.num_stages, np.int64)
    stage_ranks[trace.stages[trace.is_action]] = trace.ranks[trace.is_action]
    try:
        schedule = Schedule.from_arrays(
            name="as traced",
            stage_ranks=stage_ranks.tolist(),
            num_microbatches=int(chosen.microbatches.max()) + 1,
            kinds=chosen.operations,
            stages=chosen.stages,
            microbatches=chosen.microbatches,
            rank_offsets=np.concatenate(
                ([0], np.cumsum(np.bincount(chosen.ranks, minlength=trace.num_ranks)))
            ),
        )
        validate(schedule)
    except ConductorError as error:
        raise FormatError(
            f"{trace.name}: step {chosen.steps[0]} of data-parallel rank {chosen.dp_ranks[0]} is not"
            f" whole: {error}"
        ) from None
    return schedule


def traced_timeline(trace: Trace, spec: PipelineSpec, step: int, dp_rank: int) -> Timeline:
    """One step of one replica as it was.

    Raises:
        FormatError: it is not there or not whole.
    """
    actions = one_step(trace, step, dp_rank)
    schedule = traced_schedule(trace, step, dp_rank)
    return Timeline.measured(spec, schedule, actions.start_ms, actions.end_ms)


def one_step(trace: Trace, step: int | None = None, dp_rank: int | None = None) -> Trace:
    """The actions of one replica in one step, in program order; None as in `traced_schedule`.

    Raises:
        FormatError: there are none.
    """
    dp_rank = int(trace.dp_ranks.min()) if dp_rank is None else dp_rank
    mine = trace.where(trace.is_action & (trace.dp_ranks == dp_rank))
    if step is None and len(mine):
        numbers, counts = np.unique(mine.steps, return_counts=True)
        step = int(numbers[counts.argmax()])
    chosen = mine.where(mine.steps == step)
    if not len(chosen):
        raise FormatError(
            f"{trace.name}: no action of data-parallel rank {dp_rank}"
            + ("" if step is None else f" in step {step}")
        )
    return chosen.where(np.lexsort((chosen.end_ms, chosen.start_ms, chosen.ranks)))


def profile(
    graph: Graph, *, dp_rank: int | None = None, input_share: float = INPUT_SHARE
) -> PipelineSpec:
    """Expected times of a job's stages and links.

    Times are means over micro-batches, steps and replicas; a link's is the median of the transfers over
    it, waiting left out. Memory is counted in micro-batches of a rank: a trace has none of its own, so
    every rank may hold as much as the fullest one did in the traced order.

    Args:
        graph: from `build_graph`.
        dp_rank: only this replica; None is all.
        input_share: share of a full backward that is for the input; a trace with split backwards
            says it itself.

    Raises:
        FormatError: the traced order is not whole.
    """
    trace, own = graph.trace, own_durations(graph)
    waited = graph.latest_of_group(trace.start_ms) > trace.start_ms
    schedule = traced_schedule(trace, dp_rank=dp_rank)
    if dp_rank is not None:
        mine = trace.dp_ranks == dp_rank
        trace, own, waited = trace.where(mine), own[mine], waited[mine]
    means = np.array([_stage_means(trace, own, kind) for kind in Kind])
    split = np.isnan(means[Kind.I])
    means[Kind.I] = np.where(split, input_share * means[Kind.B], means[Kind.I])
    means[Kind.W] = np.where(split, (1.0 - input_share) * means[Kind.B], means[Kind.W])
    counts = np.bincount(schedule.stage_ranks)
    spec = PipelineSpec(
        name=trace.name,
        num_ranks=schedule.num_ranks,
        num_microbatches=schedule.num_microbatches,
        placement=_placement(schedule),
        forward_ms=tuple(means[Kind.F].tolist()),
        backward_input_ms=tuple(means[Kind.I].tolist()),
        backward_weight_ms=tuple(means[Kind.W].tolist()),
        transfer_ms=tuple(_links(trace, own, waited).tolist()),
        activation_memory=tuple((1.0 / counts[list(schedule.stage_ranks)]).tolist()),
        source=f"means over {len(np.unique(trace.steps))} steps of {trace.name}",
    )
    return spec.with_(memory_limit=float(timeline(spec, schedule).peak_memory.max()))


def _placement(schedule: Schedule) -> tuple[int, ...] | PlacementName:
    """The rank of each stage; one stage a rank in order is the usual case."""
    sequential = schedule.stage_ranks == tuple(range(schedule.num_ranks))
    return "sequential" if sequential else schedule.stage_ranks


def _stage_means(trace: Trace, own_ms: FloatArray, kind: Kind) -> FloatArray:
    """Mean duration of a kind on each stage; NaN where there is none."""
    mine = trace.operations == kind
    sums = np.bincount(trace.stages[mine], own_ms[mine], trace.num_stages)
    counts = np.bincount(trace.stages[mine], minlength=trace.num_stages)
    means = np.full(trace.num_stages, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


def _links(trace: Trace, own_ms: FloatArray, waited: BoolArray) -> FloatArray:
    """Median transfer between each stage and the next; 0 where none was seen.

    Where some receivers waited for their data, only those count: for one that came late the transfer
    may be over before.
    """
    links = np.zeros(trace.num_stages - 1)
    kinds, stages = trace.operations, trace.stages
    for link in range(len(links)):
        over = ((kinds == Operation.FORWARD_RECV) & (stages == link + 1)) | (
            (kinds == Operation.BACKWARD_RECV) & (stages == link)
        )
        seen = over & waited if (over & waited).any() else over
        if seen.any():
            links[link] = np.median(own_ms[seen])
    return links
