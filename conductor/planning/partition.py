"""Partition: which layers go into which stage."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from conductor.errors import DoesNotFitError, InvalidSpecError
from conductor.ir.schedule import FloatArray
from conductor.planning.cuts import Cuts, CutSearch, best_cuts, rank_loads, shift_cuts
from conductor.planning.layers import Layer
from conductor.planning.plan import Candidate, Plan, plan
from conductor.problem.placement import PLACEMENT_NAMES, PlacementName, stage_ranks
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import POOL, SCHEDULES, build
from conductor.simulator.simulate import timeline

TRIALS = 300
"""Splits that the refinement simulates at most."""

SLOW = ("v-half-cost", "v-min-cost")
"""Schedules that take long to make: a tenth as many."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partition:
    """A split of layers over stages.

    Attributes:
        layers: what was split.
        cuts: first layer of each stage, then the number of layers.
        spec: times and activation memory of the stages; its memory limits are what weights leave.
        candidate: the best schedule for it.
        rank_ms: work of each rank on one micro-batch, shape (num_ranks,).
        least_rank_ms: the fullest rank has at least this much in every split that fits, whatever
            the schedule.
        is_proved: whether some split reaches `least_rank_ms` (else it is only a bound). The one
            returned may give the fullest rank more, to end earlier.
    """

    layers: tuple[Layer, ...]
    cuts: tuple[int, ...]
    spec: PipelineSpec
    candidate: Candidate
    rank_ms: FloatArray
    least_rank_ms: float
    is_proved: bool

    @property
    def stages(self) -> tuple[tuple[Layer, ...], ...]:
        """Layers of each stage."""
        return tuple(self.layers[start:end] for start, end in itertools.pairwise(self.cuts))


def partition(
    layers: Sequence[Layer],
    num_ranks: int,
    *,
    num_microbatches: int,
    placement: PlacementName = "sequential",
    stages_per_rank: int | None = None,
    memory_limit: npt.ArrayLike | None = None,
    transfer_ms: float = 0.0,
    freed_at_backward_input: float = 0.0,
    refine: bool = True,
) -> Partition:
    """Splits layers over stages: least work on the fullest rank, then least makespan.

    The first step is exact (see `CutSearch`; with more than two stages a rank up to a limit of its
    search, which `Partition.is_proved` tells). It counts the micro-batches that a rank holds as 1F1B,
    interleaved 1F1B (loop) and ZB-V (v) do, then as the leanest schedules do, and takes the split
    whose best schedule ends first. The second step shifts cuts while it ends earlier.

    Args:
        layers: in order, embedding and head included.
        num_ranks: pipeline-parallel ranks.
        num_microbatches: micro-batches in a step.
        placement: `sequential`, `loop` or `v`.
        stages_per_rank: None is 1 for `sequential` and 2 for the others; `loop` takes more.
        memory_limit: of a rank, for weights and activations; a number or one for each rank.
        transfer_ms: of one micro-batch between ranks.
        freed_at_backward_input: see `PipelineSpec`.
        refine: False leaves the second step out.

    Raises:
        InvalidSpecError: a number or placement that cannot be, or fewer layers than stages.
        DoesNotFitError: no split fits the memory: which rank misses how much in the nearest one.
    """
    per_rank = stages_per_rank or (1 if placement == "sequential" else 2)
    _check(layers, num_ranks, num_microbatches, placement, per_rank)
    limits = np.broadcast_to(
        np.asarray(np.inf if memory_limit is None else memory_limit, np.float64), (num_ranks,)
    )
    names = [name for name in POOL if SCHEDULES[name].placement == placement]

    def spec_of(cuts: tuple[int, ...]) -> PipelineSpec:
        return _spec(
            layers, cuts, num_ranks, num_microbatches, placement, per_rank, limits, transfer_ms,
            freed_at_backward_input,
        )  # fmt: skip

    plans: dict[tuple[int, ...], Plan] = {}
    reason = found = None
    for held in _held(num_ranks, num_microbatches, placement, per_rank):
        search = _search(layers, held, placement, per_rank)
        found = _least_work(search, limits)
        if found is None:
            continue
        if found.cuts in plans:
            continue
        try:
            plans[found.cuts] = plan(spec_of(found.cuts), schedules=names)
        except DoesNotFitError as error:
            reason = error
    if found is None or not plans:
        raise reason or _too_little(search, limits)
    cuts = min(plans, key=lambda cuts: plans[cuts].best.timeline.makespan_ms)
    if refine:
        trial = _refine(cuts, spec_of, plans[cuts].best)
        plans[trial] = plan(spec_of(trial), schedules=names)
        cuts = min(cuts, trial, key=lambda cuts: plans[cuts].best.timeline.makespan_ms)
    spec = spec_of(cuts)
    return Partition(
        layers=tuple(layers),
        cuts=cuts,
        spec=spec,
        candidate=plans[cuts].best,
        rank_ms=_per_rank(spec, spec.duration_ms[:3].sum(axis=0)),
        least_rank_ms=found.lower_bound,
        is_proved=found.lower_bound == found.value,
    )


def _per_rank(spec: PipelineSpec, per_stage: FloatArray) -> FloatArray:
    sums = np.zeros(spec.num_ranks)
    np.add.at(sums, list(spec.stage_ranks), per_stage)
    return sums


def _check(
    layers: Sequence[Layer], num_ranks: int, num_microbatches: int, placement: str, per_rank: int
) -> None:
    for name, value in (
        ("num_ranks", num_ranks),
        ("num_microbatches", num_microbatches),
        ("stages_per_rank", per_rank),
    ):
        if value < 1:
            raise InvalidSpecError(f"{name} must be at least 1, not {value}")
    if placement not in PLACEMENT_NAMES:
        raise InvalidSpecError(
            f"placement must be one of {', '.join(PLACEMENT_NAMES)}, not {placement!r}"
        )
    if not any(
        info.placement == placement
        and (info.any_stages_per_rank or info.stages_per_rank == per_rank)
        for info in SCHEDULES.values()
    ):
        raise InvalidSpecError(
            f"no schedule takes {placement} placement with {per_rank} stages a rank"
        )
    if len(layers) < num_ranks * per_rank:
        raise InvalidSpecError(
            f"{len(layers)} layers cannot fill {num_ranks * per_rank} stages"
            f" ({num_ranks} ranks with {per_rank} each)"
        )


def _held(
    num_ranks: int, num_microbatches: int, placement: PlacementName, per_rank: int
) -> list[FloatArray]:
    """Micro-batches that each rank holds at once, from the fastest schedules to the leanest."""
    p, v, rank = num_ranks, per_rank, np.arange(num_ranks)
    if placement == "sequential":
        held = [p - rank, np.ones(p)]
    elif placement == "loop":
        held = [(2 * (p - rank - 1) + (v - 1) * p + 1) / v, np.ones(p)]
    else:
        held = [np.full(p, p), np.full(p, (p + 2) / 2), np.full(p, (p + 4) // 3), np.ones(p)]
    return [np.minimum(counts, num_microbatches).astype(np.float64) for counts in held]


def _search(
    layers: Sequence[Layer], held: FloatArray, placement: PlacementName, per_rank: int
) -> CutSearch:
    time = np.array([layer.total_ms for layer in layers])
    weights = np.array([layer.weight_memory for layer in layers])
    activations = np.array([layer.activation_memory for layer in layers])
    return CutSearch(
        loads=np.stack([np.tile(time, (len(held), 1)), weights + np.outer(held, activations)]),
        placement=placement,
        stages_per_rank=per_rank,
    )


def _least_work(search: CutSearch, limits: FloatArray) -> Cuts | None:
    """The exact step; of its equals one with even ranks."""
    none, one = np.zeros(len(limits)), np.ones(len(limits))
    found = best_cuts(search, np.stack([none, limits]), np.stack([one, none]))
    if found is None:
        return None

    def unevenness(cuts: tuple[int, ...]) -> tuple[float, float, float]:
        time, memory = rank_loads(search, cuts)
        over = float(np.maximum(memory - limits * (1.0 + 1e-9), 0.0).max())
        return over, float(time.max()), float((time**2).sum())

    return replace(found, cuts=shift_cuts(found.cuts, unevenness))


def _too_little(search: CutSearch, limits: FloatArray) -> DoesNotFitError:
    """Which rank misses how much memory in the split that misses least."""
    memory = replace(search, loads=search.loads[1:])
    found = best_cuts(memory, limits[None], np.ones((1, len(limits))))
    if found is None:
        return DoesNotFitError("no split was found that fits the memory")
    needed = rank_loads(memory, found.cuts)[0]
    rank = int(np.argmax(needed - limits))
    return DoesNotFitError(
        f"no split fits: the nearest needs {needed[rank]:.6g} of memory on rank {rank}, which has"
        f" {limits[rank]:.6g}: {needed[rank] - limits[rank]:.6g} is missing"
    )


def _spec(
    layers: Sequence[Layer],
    cuts: tuple[int, ...],
    num_ranks: int,
    num_microbatches: int,
    placement: PlacementName,
    per_rank: int,
    limits: FloatArray,
    transfer_ms: float,
    freed_at_backward_input: float,
) -> PipelineSpec:
    def sums(name: str) -> tuple[float, ...]:
        return tuple(
            math.fsum(getattr(layer, name) for layer in layers[start:end])
            for start, end in itertools.pairwise(cuts)
        )

    left = None
    if np.isfinite(limits).all():
        ranks = stage_ranks(placement, num_ranks, per_rank)
        weights = np.bincount(ranks, weights=sums("weight_memory"))
        left = tuple(np.maximum(limits - weights, 0.0).tolist())
    return PipelineSpec(
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        stages_per_rank=per_rank,
        placement=placement,
        forward_ms=sums("forward_ms"),
        backward_input_ms=sums("backward_input_ms"),
        backward_weight_ms=sums("backward_weight_ms"),
        transfer_ms=transfer_ms,
        activation_memory=sums("activation_memory"),
        freed_at_backward_input=freed_at_backward_input,
        memory_limit=left,
        name="partition",
    )


def _refine(
    cuts: tuple[int, ...],
    spec_of: Callable[[tuple[int, ...]], PipelineSpec],
    best: Candidate,
) -> tuple[int, ...]:
    """Shifts cuts while the schedule of this name ends earlier."""
    trials = itertools.count()
    most = TRIALS // 10 if best.name in SLOW else TRIALS

    def makespan(trial: tuple[int, ...]) -> float:
        if next(trials) > most:
            return math.inf
        spec = spec_of(trial)
        try:
            return timeline(spec, build(best.name, spec)).makespan_ms
        except DoesNotFitError:
            return math.inf

    return shift_cuts(cuts, makespan)
