"""A schedule: ordered actions per rank, without times, held as flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from conductor.ir.action import Action
from conductor.problem.kind import Kind

Int8Array = npt.NDArray[np.int8]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """Ordered actions per rank.

    The actions of all ranks lie one rank after another in flat arrays of length `num_actions` ("program
    order"); rank `r` owns `rank_offsets[r]:rank_offsets[r + 1]`. Every array that speaks of actions
    (durations, starts, ends) is in this order.

    Attributes:
        name: of the schedule that made it, as `conductor schedules` lists it.
        stage_ranks: the rank of each stage.
        num_microbatches: micro-batches in a step.
        num_splits: sequence splits of a micro-batch (1 but for Seq1F1B).
        kinds: int8, `Kind` of each action.
        stages: int32, global stage of each action.
        microbatches: int32.
        splits: int32, sequence split of each action.
        rank_offsets: int64, shape (num_ranks + 1,).
        overlaps: bool, this forward runs together with the backward that follows it on its rank
            (DualPipeV); see `PipelineSpec.overlap_factor`.
    """

    name: str
    stage_ranks: tuple[int, ...]
    num_microbatches: int
    num_splits: int = 1
    kinds: Int8Array
    stages: Int32Array
    microbatches: Int32Array
    splits: Int32Array
    rank_offsets: Int64Array
    overlaps: BoolArray

    @classmethod
    def from_arrays(
        cls,
        *,
        name: str,
        stage_ranks: Sequence[int],
        num_microbatches: int,
        kinds: npt.ArrayLike,
        stages: npt.ArrayLike,
        microbatches: npt.ArrayLike,
        rank_offsets: npt.ArrayLike,
        splits: npt.ArrayLike | None = None,
        num_splits: int = 1,
        overlaps: npt.ArrayLike | None = None,
    ) -> Schedule:
        """Makes a schedule of flat arrays in program order (see the attributes); they are not copied
        when they have the right type already."""
        kind_array = np.ascontiguousarray(kinds, dtype=np.int8)
        num_actions = len(kind_array)
        return cls(
            name=name,
            stage_ranks=tuple(int(rank) for rank in stage_ranks),
            num_microbatches=int(num_microbatches),
            num_splits=int(num_splits),
            kinds=kind_array,
            stages=np.ascontiguousarray(stages, dtype=np.int32),
            microbatches=np.ascontiguousarray(microbatches, dtype=np.int32),
            splits=(
                np.zeros(num_actions, np.int32)
                if splits is None
                else np.ascontiguousarray(splits, dtype=np.int32)
            ),
            rank_offsets=np.ascontiguousarray(rank_offsets, dtype=np.int64),
            overlaps=(
                np.zeros(num_actions, np.bool_)
                if overlaps is None
                else np.ascontiguousarray(overlaps, dtype=np.bool_)
            ),
        )

    @classmethod
    def from_actions(
        cls,
        rows: Sequence[Sequence[Action]],
        *,
        name: str,
        stage_ranks: Sequence[int],
        num_microbatches: int,
        num_splits: int = 1,
    ) -> Schedule:
        """Makes a schedule of one list of actions a rank."""
        flat = [action for row in rows for action in row]
        columns = np.array(flat, dtype=np.int32).reshape(len(flat), 4)
        return cls.from_arrays(
            name=name,
            stage_ranks=stage_ranks,
            num_microbatches=num_microbatches,
            num_splits=num_splits,
            stages=columns[:, 0],
            kinds=columns[:, 1],
            microbatches=columns[:, 2],
            splits=columns[:, 3],
            rank_offsets=np.cumsum([0, *map(len, rows)]),
        )

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.rank_offsets) - 1

    @property
    def num_stages(self) -> int:
        """Number of stages over all ranks."""
        return len(self.stage_ranks)

    @property
    def num_actions(self) -> int:
        """Number of actions over all ranks."""
        return len(self.kinds)

    @property
    def rows(self) -> tuple[tuple[Action, ...], ...]:
        """One tuple of actions a rank, in order. Builds objects: for people and files, not hot loops."""
        flat = [self.action(index) for index in range(self.num_actions)]
        bounds = self.rank_offsets.tolist()
        return tuple(
            tuple(flat[start:end]) for start, end in zip(bounds[:-1], bounds[1:], strict=True)
        )

    def action(self, index: int) -> Action:
        """The action at a program-order index."""
        return Action(
            int(self.stages[index]),
            Kind(int(self.kinds[index])),
            int(self.microbatches[index]),
            int(self.splits[index]),
        )

    def named(self, name: str) -> Schedule:
        """The same order under another name."""
        return replace(self, name=name)

    def __eq__(self, other: object) -> bool:
        """Equal orders on equal placements; the name does not count."""
        if not isinstance(other, Schedule):
            return NotImplemented
        return (
            self.stage_ranks == other.stage_ranks
            and self.num_microbatches == other.num_microbatches
            and self.num_splits == other.num_splits
            and all(
                np.array_equal(getattr(self, field), getattr(other, field))
                for field in (
                    "rank_offsets", "kinds", "stages", "microbatches", "splits", "overlaps"
                )
            )
        )  # fmt: skip

    def __hash__(self) -> int:
        """Consistent with `__eq__`."""
        return hash((self.stage_ranks, self.kinds.tobytes(), self.microbatches.tobytes()))
