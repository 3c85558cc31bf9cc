"""PipelineSpec: everything a planner knows about a pipeline-parallel step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from conductor.errors import InvalidSpecError
from conductor.problem.kind import Kind
from conductor.problem.placement import PLACEMENT_NAMES, PlacementName, placement_name, stage_ranks

FloatArray = npt.NDArray[np.float64]
PerStage = float | tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """A pipeline-parallel step: ranks, stages, micro-batches, expected times, memory.

    The field names are the keys of the spec file. A number counts for every stage (link, rank); a list
    gives one each. Times are milliseconds. A memory unit is whatever the user likes: bytes, or
    micro-batches of a whole rank.

    Attributes:
        num_ranks: pipeline-parallel ranks.
        num_microbatches: micro-batches in a step.
        stages_per_rank: stages that each rank holds.
        placement: `sequential`, `loop`, `v`, or the rank of each stage as a list (then the list's
            length is the number of stages and ranks may hold unequal numbers).
        forward_ms: forward of one micro-batch (F), per stage.
        backward_input_ms: backward for the input (I), per stage.
        backward_weight_ms: backward for the weights (W), per stage.
        transfer_ms: one micro-batch's activation or gradient from a stage to a neighbour on another
            rank; a list gives one for each pair of consecutive stages (`num_stages - 1`).
        blocking_transfers: the sender is busy while it sends. Every F and I (B) pays it, at the ends of
            the pipeline too: the paper's simulator counts so.
        activation_memory: held by one micro-batch of a stage from the start of F, per stage.
        freed_at_backward_input: share of it that I frees when it ends; W frees the rest.
        memory_limit: per rank; None is no limit.
        overlap_factor: time of a forward and a backward that run together, over the sum of both
            (schedules that overlap them, as DualPipeV; 1 is no gain).
        name: shown in tables.
        source: where the numbers come from.
    """

    num_ranks: int
    num_microbatches: int
    stages_per_rank: int = 1
    placement: PlacementName | tuple[int, ...] = "sequential"
    forward_ms: PerStage
    backward_input_ms: PerStage
    backward_weight_ms: PerStage
    transfer_ms: PerStage = 0.0
    blocking_transfers: bool = False
    activation_memory: PerStage = 1.0
    freed_at_backward_input: float = 0.0
    memory_limit: PerStage | None = None
    overlap_factor: float = 1.0
    name: str = "unnamed"
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidSpecError: names the field and what is wrong with it.
        """
        for name in ("num_ranks", "num_microbatches", "stages_per_rank"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidSpecError(
                    f"{name} must be a whole number of at least 1, not {value!r}"
                )
        self._check_placement()
        for name in ("forward_ms", "backward_input_ms", "backward_weight_ms", "activation_memory"):
            self._check_numbers(name, self.num_stages, "stages")
        self._check_numbers("transfer_ms", self.num_stages - 1, "pairs of consecutive stages")
        if self.memory_limit is not None:
            self._check_numbers("memory_limit", self.num_ranks, "ranks")
        if not 0.0 <= self.freed_at_backward_input <= 1.0:
            raise InvalidSpecError(
                f"freed_at_backward_input is a share in [0, 1], not {self.freed_at_backward_input!r}"
            )
        if not (math.isfinite(self.overlap_factor) and self.overlap_factor > 0.0):
            raise InvalidSpecError(f"overlap_factor must be above 0, not {self.overlap_factor!r}")

    def _check_placement(self) -> None:
        if isinstance(self.placement, str):
            if self.placement not in PLACEMENT_NAMES:
                raise InvalidSpecError(
                    f"placement must be one of {', '.join(PLACEMENT_NAMES)} or a list of ranks,"
                    f" not {self.placement!r}"
                )
            return
        ranks = tuple(self.placement)
        object.__setattr__(self, "placement", ranks)
        for stage, rank in enumerate(ranks):
            if not 0 <= rank < self.num_ranks:
                raise InvalidSpecError(
                    f"placement puts stage {stage} on rank {rank}, but num_ranks is {self.num_ranks}"
                )
        missing = sorted(set(range(self.num_ranks)) - set(ranks))
        if missing:
            raise InvalidSpecError(f"placement gives rank {missing[0]} no stage")
        if self.stages_per_rank not in (1, len(ranks) / self.num_ranks):
            raise InvalidSpecError(
                f"placement lists {len(ranks)} stages, but stages_per_rank is {self.stages_per_rank}"
                f" on {self.num_ranks} ranks"
            )

    def _check_numbers(self, name: str, length: int, what: str) -> None:
        try:
            given = np.asarray(getattr(self, name), np.float64)
        except (TypeError, ValueError):
            raise InvalidSpecError(
                f"{name} must be a number or a list of numbers, not {getattr(self, name)!r}"
            ) from None
        if given.ndim and given.shape != (length,):
            raise InvalidSpecError(f"{name} lists {len(given)} numbers for {length} {what}")
        value = tuple(given.tolist()) if given.ndim else float(given)
        numbers = value if isinstance(value, tuple) else (value,)
        object.__setattr__(self, name, value)
        for index, number in enumerate(numbers):
            if not (math.isfinite(number) and number >= 0.0):
                where = f"{name}[{index}]" if isinstance(value, tuple) else name
                raise InvalidSpecError(f"{where} must be a number of at least 0, not {number!r}")

    @property
    def stage_ranks(self) -> tuple[int, ...]:
        """The rank of each stage."""
        if isinstance(self.placement, tuple):
            return self.placement
        return stage_ranks(self.placement, self.num_ranks, self.stages_per_rank)

    @property
    def num_stages(self) -> int:
        """Number of stages over all ranks."""
        if isinstance(self.placement, tuple):
            return len(self.placement)
        return self.num_ranks * self.stages_per_rank

    @property
    def is_rank_level(self) -> bool:
        """Whether each rank holds one stage, in order, so that the profile can be split further."""
        return self.stage_ranks == tuple(range(self.num_ranks))

    def per_stage(self, name: str) -> FloatArray:
        """A per-stage field as an array, shape (num_stages,)."""
        return np.broadcast_to(
            np.asarray(getattr(self, name), np.float64), (self.num_stages,)
        ).copy()

    @property
    def duration_ms(self) -> FloatArray:
        """Expected durations, shape (number of kinds, num_stages); row `Kind.B` is I + W."""
        table = np.zeros((len(Kind), self.num_stages))
        table[Kind.F] = self.per_stage("forward_ms")
        table[Kind.I] = self.per_stage("backward_input_ms")
        table[Kind.W] = self.per_stage("backward_weight_ms")
        table[Kind.B] = table[Kind.I] + table[Kind.W]
        return table

    @property
    def link_ms(self) -> FloatArray:
        """Transfer time between stage s and s + 1, shape (num_stages - 1,); 0 on one rank."""
        times = np.broadcast_to(
            np.asarray(self.transfer_ms, np.float64), (self.num_stages - 1,)
        ).copy()
        ranks = np.asarray(self.stage_ranks)
        times[ranks[:-1] == ranks[1:]] = 0.0
        return times

    @property
    def memory_limits(self) -> FloatArray:
        """Memory limit of each rank, shape (num_ranks,); inf where there is none."""
        limit = math.inf if self.memory_limit is None else self.memory_limit
        return np.broadcast_to(np.asarray(limit, np.float64), (self.num_ranks,)).copy()

    def with_(self, **changes: object) -> PipelineSpec:
        """A copy with other values, checked anew."""
        return replace(self, **changes)  # type: ignore[arg-type]  # keyword names are the caller's

    def on_stages(self, ranks: Sequence[int]) -> PipelineSpec:
        """This rank-level profile split evenly over several stages a rank.

        Each rank's times and memory are divided by the number of stages it gets. A link between ranks
        that are not neighbours in the profile (the wrap-around of a loop) costs the slowest link's time.

        Args:
            ranks: the rank of each new stage.

        Raises:
            InvalidSpecError: the spec already gives stages, other than these.
        """
        ranks = tuple(int(rank) for rank in ranks)
        if ranks == self.stage_ranks:
            return self
        if not self.is_rank_level:
            raise InvalidSpecError(
                f"the spec gives {self.num_stages} stages placed as {list(self.stage_ranks)}: they"
                f" cannot be placed as {list(ranks)}"
            )
        counts = np.bincount(ranks, minlength=self.num_ranks)
        if len(counts) > self.num_ranks:
            raise InvalidSpecError(f"rank {len(counts) - 1} is beyond num_ranks = {self.num_ranks}")
        share = 1.0 / counts[list(ranks)]

        def spread(name: str) -> PerStage:
            value = getattr(self, name)
            if isinstance(value, float) and len(set(counts)) == 1:
                return value / float(counts[0])
            return tuple((self.per_stage(name)[list(ranks)] * share).tolist())

        transfer = self.transfer_ms
        if isinstance(transfer, tuple):
            links, slowest = transfer, max(transfer, default=0.0)
            transfer = tuple(
                links[min(a, b)] if abs(a - b) == 1 else slowest
                for a, b in zip(ranks[:-1], ranks[1:], strict=True)
            )
        name = placement_name(ranks, self.num_ranks)
        return self.with_(
            placement=ranks if name is None else name,
            stages_per_rank=1 if name is None else len(ranks) // self.num_ranks,
            transfer_ms=transfer,
            **{
                key: spread(key)
                for key in (
                    "forward_ms", "backward_input_ms", "backward_weight_ms", "activation_memory"
                )
            },
        )  # fmt: skip
