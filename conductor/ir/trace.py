"""A trace: the operations of a real job, with start and duration."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from conductor.errors import FormatError
from conductor.ir.schedule import BoolArray, FloatArray, Int8Array, Int32Array, Int64Array
from conductor.problem.kind import Kind


class Operation(IntEnum):
    """Kinds of operation in a trace. The first four are the kinds of action, with their numbers."""

    FORWARD = Kind.F
    BACKWARD_INPUT = Kind.I
    BACKWARD_WEIGHT = Kind.W
    BACKWARD = Kind.B
    FORWARD_SEND = 4
    FORWARD_RECV = 5
    BACKWARD_SEND = 6
    BACKWARD_RECV = 7
    PARAMS_ALL_GATHER = 8
    GC = 9
    LAYERNORM_GRADS_ALL_REDUCE = 10
    EMBEDDING_GRADS_ALL_REDUCE = 11
    GRADS_REDUCE_SCATTER = 12
    OPTIMIZER_CLIP = 13
    OPTIMIZER = 14


LABELS = {
    Operation.FORWARD: "forward-compute",
    Operation.BACKWARD_INPUT: "backward-input-compute",
    Operation.BACKWARD_WEIGHT: "backward-weight-compute",
    Operation.BACKWARD: "backward-compute",
    Operation.FORWARD_SEND: "forward-pp-comm",
    Operation.FORWARD_RECV: "forward-pp-comm",
    Operation.BACKWARD_SEND: "backward-pp-comm",
    Operation.BACKWARD_RECV: "backward-pp-comm",
    Operation.PARAMS_ALL_GATHER: "params-all-gather",
    Operation.GC: "gc",
    Operation.LAYERNORM_GRADS_ALL_REDUCE: "layernorm-grads-all-reduce",
    Operation.EMBEDDING_GRADS_ALL_REDUCE: "embedding-grads-all-reduce",
    Operation.GRADS_REDUCE_SCATTER: "grads-reduce-scatter",
    Operation.OPTIMIZER_CLIP: "optimizer-clip-main-grad",
    Operation.OPTIMIZER: "optimizer",
}
"""What reports call each operation: the names of the straggler study."""

COMPUTE = frozenset({*map(Operation, Kind), Operation.GC, Operation.OPTIMIZER})
"""Operations that only keep their own rank busy; all others wait for or move data to other ranks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Operations of a job; the arrays have one entry an operation, in any order.

    Attributes:
        name: of the file or the job.
        steps: int64, training step.
        dp_ranks: int32, data-parallel rank.
        ranks: int32, pipeline rank.
        stages: int32, global stage of a compute operation, of the one that a send follows or a receive
            precedes, or of the weights that a collective is for; -1 is none.
        microbatches: int32, likewise; -1 is none.
        operations: int8, `Operation`.
        start_ms: float64, from the step's start.
        duration_ms: float64; of a communication it includes waiting for the peers.
        notes: what the reader left out or mended, one sentence each.
    """

    name: str
    steps: Int64Array
    dp_ranks: Int32Array
    ranks: Int32Array
    stages: Int32Array
    microbatches: Int32Array
    operations: Int8Array
    start_ms: FloatArray
    duration_ms: FloatArray
    notes: tuple[str, ...] = ()

    def checked(self) -> Trace:
        """This trace, if there is a pipeline in it and its times can be.

        Raises:
            FormatError: says what is missing or cannot be.
        """
        if not self.is_action.any():
            raise FormatError(
                f"{self.name}: no forward and backward of a pipeline stage in this trace"
            )
        wrong = np.flatnonzero(~(self.duration_ms >= 0.0) | ~np.isfinite(self.end_ms))
        if len(wrong):
            raise FormatError(
                f"{self.name}: operation {wrong[0]} starts at {self.start_ms[wrong[0]]:g} ms and lasts"
                f" {self.duration_ms[wrong[0]]:g} ms"
            )
        return self

    def __len__(self) -> int:
        """Number of operations."""
        return len(self.operations)

    @property
    def end_ms(self) -> FloatArray:
        """End of each operation."""
        return self.start_ms + self.duration_ms

    @property
    def is_action(self) -> BoolArray:
        """Whether each operation is a forward or backward of a stage."""
        return self.operations < len(Kind)

    @property
    def num_ranks(self) -> int:
        """Number of pipeline ranks."""
        return int(self.ranks.max()) + 1

    @property
    def num_stages(self) -> int:
        """Number of stages over all pipeline ranks."""
        return int(self.stages.max()) + 1

    def where(self, chosen: npt.NDArray[np.bool_] | Int64Array) -> Trace:
        """Only the chosen operations, or all in another order."""
        columns = {
            field.name: getattr(self, field.name)[chosen]
            for field in fields(self)
            if field.name not in ("name", "notes")
        }
        return replace(self, **columns)

    def noted(self, *notes: str) -> Trace:
        """The same trace with further notes."""
        return replace(self, notes=(*self.notes, *notes))
