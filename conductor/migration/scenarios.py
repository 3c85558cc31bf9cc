"""The scenarios of the published figures of migration: what the pipeline is and how it varies."""

from __future__ import annotations

from dataclasses import dataclass

from conductor.problem.presets import load_preset
from conductor.problem.spec import PipelineSpec
from conductor.variation import MarkovStragglers, NoVariation, Product, UniformNoise, Variation


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationScenario:
    """A pipeline and its variation, with what is known of it under the simple model.

    Attributes:
        spec: the problem.
        variation: of the realised durations.
        best_order_ms: mean makespan of the best order known without migration; None if not known.
        greedy_ms: mean makespan of a greedy planner with migration.
    """

    spec: PipelineSpec
    variation: Variation
    best_order_ms: float | None
    greedy_ms: float


def equal_ranks(
    num_ranks: int,
    num_microbatches: int,
    memory_limit: float,
    slow: dict[int, float] | None = None,
) -> PipelineSpec:
    """Equal ranks with F, I, W of 10, 10, 7 ms and links of 0.4 ms, but for some slow ones."""
    factors = [(slow or {}).get(rank, 1.0) for rank in range(num_ranks)]
    return PipelineSpec(
        name=f"equal-{num_ranks}x{num_microbatches}",
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        forward_ms=tuple(10.0 * factor for factor in factors),
        backward_input_ms=tuple(10.0 * factor for factor in factors),
        backward_weight_ms=tuple(7.0 * factor for factor in factors),
        transfer_ms=0.4,
        memory_limit=memory_limit,
        source="rounded times of the 28.3B profile of the zero-bubble paper",
    )


_STRAGGLERS = Product((MarkovStragglers(), UniformNoise(0.1)))


def _noise(level: float) -> Variation:
    return UniformNoise(level) if level else NoVariation()


def _family(
    name: str, spec: PipelineSpec, figures: dict[float, tuple[float | None, float]]
) -> dict[str, MigrationScenario]:
    """One scenario a noise level: `name`, `name-10` for 10 % and so on."""
    return {
        f"{name}-{round(100 * level)}": MigrationScenario(
            spec=spec, variation=_noise(level), best_order_ms=best, greedy_ms=greedy
        )
        for level, (best, greedy) in figures.items()
    }


SCENARIOS: dict[str, MigrationScenario] = {
    **_family(
        "paper",
        load_preset("paper"),
        {0.0: (321.4, 279.1), 0.1: (321.2, 277.6), 0.2: (322.1, 280.2), 0.3: (323.3, 281.3)},
    ),
    **_family(
        "equal-4x8",
        equal_ranks(4, 8, 4.0),
        {0.0: (259.8, 237.0), 0.1: (260.4, 238.2), 0.3: (265.5, 242.2)},
    ),
    **_family("equal-4x8-ample", equal_ranks(4, 8, 8.0), {0.0: (247.2, 229.2)}),
    **_family("equal-8x8", equal_ranks(8, 8, 8.0), {0.0: (None, 255.3)}),
    **_family("equal-8x16", equal_ranks(8, 16, 8.0), {0.0: (481.0, 480.8)}),
    **_family(
        "equal-8x32",
        equal_ranks(8, 32, 8.0),
        {0.0: (913.0, 912.8), 0.1: (None, 917.5), 0.3: (None, 936.4)},
    ),
    **_family(
        "equal-16x64", equal_ranks(16, 64, 16.0), {0.0: (1947.0, 1837.0), 0.1: (None, 1849.0)}
    ),
    **_family(
        "slow-rank",
        equal_ranks(8, 32, 16.0, {3: 1.3}),
        {0.0: (1180.0, 942.8), 0.1: (None, 951.1), 0.3: (None, 979.5)},
    ),
    **_family("heavy-last-stage", equal_ranks(8, 32, 16.0, {7: 1.5}), {0.0: (1369.0, 951.2)}),
    "stragglers-4x8": MigrationScenario(
        spec=equal_ranks(4, 8, 4.0), variation=_STRAGGLERS, best_order_ms=308.8, greedy_ms=267.2
    ),
    "stragglers-8x32": MigrationScenario(
        spec=equal_ranks(8, 32, 8.0), variation=_STRAGGLERS, best_order_ms=1179.0, greedy_ms=1028.0
    ),
}
