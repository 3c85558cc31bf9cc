"""Presets: the paper's configuration and published profiles, by name."""

from __future__ import annotations

from difflib import get_close_matches

from conductor.errors import InvalidSpecError
from conductor.problem.spec import PipelineSpec

ZERO_BUBBLE = (
    "Qi, Wan, Huang, Lin: Zero Bubble Pipeline Parallelism, ICLR 2024 (arXiv 2401.10241), profiled"
    " times on A100 80G, sequence 1024"
)
CONTROLLABLE_MEMORY = (
    "Qi, Wan, Amar, Lin: Pipeline Parallelism with Controllable Memory, NeurIPS 2024"
    " (arXiv 2405.15362), profiled times of half a rank's layers"
)
PAPER = (
    "Dong, Liu, Yang, Lai, Jin: Conductor, Future Generation Computer Systems 186:108762 (2027),"
    " the timing model of its simulator"
)

_Row = tuple[str, int, int, float, float, float, float]

# Model, ranks, micro-batches, F, I, W (the papers' F, B, W) and transfer in milliseconds.
_PROFILES: tuple[_Row, ...] = (
    ("1.5b", 8, 24, 18.522, 18.086, 9.337, 0.601),
    ("1.5b", 8, 32, 18.513, 18.086, 9.331, 0.626),
    ("1.5b", 8, 64, 18.546, 18.097, 9.321, 0.762),
    ("6.2b", 8, 24, 29.718, 29.444, 19.927, 0.527),
    ("6.2b", 8, 32, 29.802, 29.428, 19.530, 0.577),
    ("6.2b", 8, 64, 29.935, 29.621, 19.388, 0.535),
    ("14.6b", 16, 48, 11.347, 11.248, 8.132, 0.377),
    ("14.6b", 16, 64, 11.307, 11.254, 8.101, 0.379),
    ("14.6b", 16, 128, 11.325, 11.308, 8.109, 0.378),
    ("28.3b", 32, 96, 10.419, 10.207, 7.715, 0.408),
    ("28.3b", 32, 128, 10.408, 10.204, 7.703, 0.408),
    ("28.3b", 32, 256, 10.402, 10.248, 7.698, 0.460),
)
_V_PROFILES: tuple[_Row, ...] = (
    ("6.2b", 16, 48, 14.407, 14.380, 9.676, 1.610),
    ("14.6b", 24, 72, 6.763, 6.969, 5.251, 0.755),
    ("28.3b", 32, 96, 9.458, 9.748, 7.288, 0.879),
)


def preset_names() -> tuple[str, ...]:
    """The names that `load_preset` takes, in the order of `conductor presets`."""
    return tuple(_PRESETS)


def load_preset(name: str) -> PipelineSpec:
    """A built-in spec.

    - `paper`: 4 ranks, each slower than the one before, blocking sends, 8 micro-batches, limit 4.
    - `gpt-like`: four equal ranks with times near those of `gpt-28.3b`, 8 micro-batches, limit 4.
    - `gpt-MODEL-pRANKS-mMICROBATCHES`: published profiles of GPT-3-like models; half of the
      activation is freed by the backward for the input, no memory limit.
    - the same with `-v` behind it: the set profiled for ZB-V, two stages a rank in a V.

    A memory unit is what one micro-batch of a whole rank holds.

    Raises:
        InvalidSpecError: unknown; names the nearest.
    """
    try:
        return _PRESETS[name]
    except KeyError:
        near = get_close_matches(name, _PRESETS, n=1, cutoff=0.0)[0]
        raise InvalidSpecError(
            f"unknown preset {name!r}: the nearest is {near!r}, `conductor presets` lists all"
        ) from None


def _paper() -> PipelineSpec:
    slowdown = [1.0 + 0.1 * rank for rank in range(4)]
    return PipelineSpec(
        name="paper",
        num_ranks=4,
        num_microbatches=8,
        forward_ms=tuple(10.0 * factor for factor in slowdown),
        backward_input_ms=tuple(10.0 * factor for factor in slowdown),
        backward_weight_ms=tuple(7.0 * factor for factor in slowdown),
        transfer_ms=0.4,
        blocking_transfers=True,
        freed_at_backward_input=0.5,
        memory_limit=4.0,
        source=PAPER,
    )


def _gpt_like() -> PipelineSpec:
    return PipelineSpec(
        name="gpt-like",
        num_ranks=4,
        num_microbatches=8,
        forward_ms=10.0,
        backward_input_ms=10.0,
        backward_weight_ms=7.0,
        transfer_ms=0.4,
        memory_limit=4.0,
        source=f"rounded times of gpt-28.3b on equal ranks; {ZERO_BUBBLE}",
    )


def _profile(row: _Row, stages_per_rank: int) -> PipelineSpec:
    model, num_ranks, num_microbatches, forward, backward_input, backward_weight, transfer = row
    v = stages_per_rank == 2
    return PipelineSpec(
        name=f"gpt-{model}-p{num_ranks}-m{num_microbatches}{'-v' if v else ''}",
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        stages_per_rank=stages_per_rank,
        placement="v" if v else "sequential",
        forward_ms=forward,
        backward_input_ms=backward_input,
        backward_weight_ms=backward_weight,
        transfer_ms=transfer,
        activation_memory=1.0 / stages_per_rank,
        freed_at_backward_input=0.5,
        source=CONTROLLABLE_MEMORY if v else ZERO_BUBBLE,
    )


_PRESETS: dict[str, PipelineSpec] = {
    spec.name: spec
    for spec in (
        _paper(),
        _gpt_like(),
        *(_profile(row, 1) for row in _PROFILES),
        *(_profile(row, 2) for row in _V_PROFILES),
    )
}
