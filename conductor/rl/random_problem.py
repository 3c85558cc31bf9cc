"""Random pipelines and kinds of variation, to train and to compare policies on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from conductor.ir.schedule import FloatArray
from conductor.problem.spec import PerStage, PipelineSpec
from conductor.variation import (
    Factor,
    ForwardPauses,
    LognormalNoise,
    MarkovStragglers,
    MicrobatchFactor,
    NoVariation,
    Product,
    RankFactor,
    UniformNoise,
)


def random_spec(rng: np.random.Generator, ranks: Sequence[int]) -> PipelineSpec:
    """A pipeline of any sort: stages a rank, even and uneven times, transfers, memory from tight to loose.

    Args:
        rng: of every choice.
        ranks: numbers of ranks to choose from.
    """
    num_ranks = int(rng.choice(ranks))
    stages_per_rank = int(rng.choice([1, 2, 3], p=[0.65, 0.28, 0.07]))
    most = 4.0 if stages_per_rank == 1 else 2.5
    num_microbatches = max(2, round(num_ranks * rng.uniform(1.0, most)))
    forward = 10.0 ** rng.uniform(0.0, 2.0)
    transfer = forward * rng.choice([0.0, rng.uniform(0.0, 0.1), rng.uniform(0.1, 0.5)])
    freed = rng.choice([0.0, 0.5, rng.random()])
    # Between hardly two micro-batches and more than zero bubbles need.
    limit = rng.choice([num_ranks, rng.uniform(0.5, 2.0) * num_ranks, np.inf], p=[0.3, 0.5, 0.2])
    uneven = _unevenness(rng, num_ranks * stages_per_rank)
    return PipelineSpec(
        name="random",
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        stages_per_rank=stages_per_rank,
        placement="sequential" if stages_per_rank == 1 else rng.choice(["loop", "v"]).item(),
        forward_ms=_times(uneven, forward / stages_per_rank),
        backward_input_ms=_times(uneven, forward / stages_per_rank * rng.uniform(0.8, 1.6)),
        backward_weight_ms=_times(uneven, forward / stages_per_rank * rng.uniform(0.3, 1.1)),
        transfer_ms=float(transfer),
        blocking_transfers=bool(rng.random() < 0.1),
        activation_memory=1.0 / stages_per_rank,
        freed_at_backward_input=float(freed),
        memory_limit=None if np.isinf(limit) else max(2.0, float(limit)),
    )


def _unevenness(rng: np.random.Generator, num_stages: int) -> FloatArray:
    """Factors of the stages' times: all alike, all different, one slow, or the last one slow."""
    factors = np.ones(num_stages)
    sort = rng.integers(4)
    if sort == 1:
        factors = np.exp(rng.normal(0.0, 0.2, num_stages))
    elif sort > 1:
        slow = num_stages - 1 if sort == 2 else rng.integers(num_stages)
        factors[slow] = rng.uniform(1.0, 1.5)
    return factors


def _times(factors: FloatArray, ms: float) -> PerStage:
    return tuple((factors * ms).tolist()) if (factors != 1.0).any() else ms


def random_variation(rng: np.random.Generator, spec: PipelineSpec) -> Factor:
    """Variation of any kind: none, of actions, micro-batches or ranks, and some of these with noise."""
    forward_ms = float(spec.per_stage("forward_ms").mean())
    noise = UniformNoise(float(rng.uniform(0.0, 0.4)))
    low, high = sorted(rng.uniform(1.2, 3.0, 2).tolist())
    kinds: tuple[Factor, ...] = (
        NoVariation(),
        noise,
        noise,
        LognormalNoise(forward=float(rng.uniform(0.0, 0.3)), backward=float(rng.uniform(0.0, 0.3))),
        MicrobatchFactor(
            level=float(rng.uniform(0.0, 0.2)), heavy_share=float(rng.uniform(0.0, 0.3)),
            heavy=(low, high),
        ),
        RankFactor(level=0.02, slow_share=1.0 / spec.num_ranks, slow=(low, high)),
        MarkovStragglers(
            factor=high, p_slow=float(rng.uniform(0.005, 0.05)), p_recover=float(rng.uniform(0.1, 0.5))
        ),
        ForwardPauses(
            chance=float(rng.uniform(0.0, 0.03)), pause_ms=(low * forward_ms, 4.0 * high * forward_ms)
        ),
    )  # fmt: skip
    chosen = kinds[int(rng.integers(len(kinds)))]
    return Product((chosen, noise)) if rng.random() < 0.25 else chosen
