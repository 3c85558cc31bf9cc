"""Times as whole numbers, in which the heuristics plan."""

from __future__ import annotations

import math

import numpy as np

from conductor.ir.schedule import FloatArray
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.simulator.program import blocking_send_ms


def in_ticks(spec: PipelineSpec) -> tuple[FloatArray, FloatArray]:
    """Times of a spec in a decimal unit of at most a billionth of the longest.

    The heuristics ask whether a W fits a gap exactly and which of two plans is shorter. Sums of whole
    numbers are exact, so such ties stay ties; sums of 0.4 are not.

    Returns:
        Busy time of F, I and W, shape (3, num_stages), and lag from a stage to the next, shape
        (num_stages - 1,).
    """
    stages = np.arange(spec.num_stages, dtype=np.int32)
    kinds = (Kind.F, Kind.I, Kind.W)
    busy = spec.duration_ms[list(kinds)] + [
        blocking_send_ms(spec, np.full(len(stages), kind, np.int8), stages) for kind in kinds
    ]
    lag = np.zeros_like(spec.link_ms) if spec.blocking_transfers else spec.link_ms
    longest = max(busy.max(), lag.max(initial=0.0))
    if longest == 0.0:
        return busy, lag
    ticks = 10.0 ** (9 - math.floor(math.log10(longest)))
    return np.rint(busy * ticks), np.rint(lag * ticks)
