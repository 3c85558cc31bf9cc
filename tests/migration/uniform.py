"""Pipelines of equal ranks, as the figures of migration use them."""

from conductor.problem.spec import PipelineSpec


def uniform(num_ranks, num_microbatches, memory_limit=None, slowdown=None):
    """F, I, W of 10, 10, 7 ms and links of 0.4 ms; `slowdown` maps ranks to factors."""
    factors = [(slowdown or {}).get(rank, 1.0) for rank in range(num_ranks)]
    return PipelineSpec(
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        forward_ms=tuple(10.0 * factor for factor in factors),
        backward_input_ms=tuple(10.0 * factor for factor in factors),
        backward_weight_ms=tuple(7.0 * factor for factor in factors),
        transfer_ms=0.4,
        memory_limit=memory_limit,
    )
