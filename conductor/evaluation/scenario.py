"""Scenarios: what planners know, and what happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from conductor.errors import InvalidSpecError
from conductor.migration.scenarios import equal_ranks
from conductor.problem.presets import load_preset
from conductor.problem.spec import PipelineSpec
from conductor.problem.spec_file import load_spec
from conductor.variation import (
    MarkovStragglers,
    MicrobatchFactor,
    NoVariation,
    Product,
    UniformNoise,
    Variation,
    split_links,
)
from conductor.variation.variation_file import load_variation


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One question put to every scheduler.

    Attributes:
        name: shown in tables.
        spec: the expected times, links and memory: all that a planner may know.
        variation: turns expected into realised durations.
        actual_transfer_ms: the links as they are, in the form of `PipelineSpec.transfer_ms`; None is as
            expected.
        summary: one line on what it stands for.
    """

    name: str
    spec: PipelineSpec
    variation: Variation = field(default_factory=NoVariation)
    actual_transfer_ms: float | tuple[float, ...] | None = None
    summary: str = ""

    def __post_init__(self) -> None:
        """Moves delays of links from the variation to the links as they are.

        Raises:
            InvalidSpecError: the links are others than the spec's.
        """
        known = self.actual_spec
        variation, actual = split_links(self.variation, known)
        if actual is not known:
            object.__setattr__(self, "variation", variation)
            object.__setattr__(self, "actual_transfer_ms", actual.transfer_ms)

    @property
    def actual_spec(self) -> PipelineSpec:
        """The spec with the links as they are."""
        if self.actual_transfer_ms is None:
            return self.spec
        return self.spec.with_(transfer_ms=self.actual_transfer_ms)


def load_scenario(name: str) -> Scenario:
    """A named scenario.

    Raises:
        InvalidSpecError: there is none of this name.
    """
    if name in _TRACED:
        return _traced(name)
    try:
        return _SCENARIOS[name]
    except KeyError:
        raise InvalidSpecError(
            f"no scenario is named {name!r}; there are {', '.join(scenario_names())}"
        ) from None


def scenario_names() -> tuple[str, ...]:
    """The names that `load_scenario` takes."""
    return (*_SCENARIOS, *_TRACED)


@cache
def _traced(name: str) -> Scenario:
    """A scenario of what `conductor fit` wrote of a real job: its expected times and its variation."""
    base = str(Path(__file__).parent / "traced" / name.removeprefix("traced-"))
    return Scenario(
        name=name,
        spec=load_spec(f"{base}.spec.toml"),
        variation=load_variation(f"{base}.variation.toml"),
        summary=_TRACED[name],
    )


def _paper(percent: int) -> Scenario:
    return Scenario(
        name=f"paper-{percent}",
        spec=load_preset("paper"),
        variation=UniformNoise(level=percent / 100) if percent else NoVariation(),
        summary=f"the paper's configuration at {percent} % noise",
    )


_TRACED = {
    "traced-slow-worker": "a real job, one of whose 16 workers is 2.5 times slower (AR, arXiv 2505.05713)",
    "traced-variable-length": "a real job of variable sequence lengths (SE, arXiv 2505.05713)",
}

_SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        *(_paper(percent) for percent in (0, 10, 20, 30)),
        Scenario(
            name="uniform-tight",
            spec=equal_ranks(8, 32, 8.0),
            variation=UniformNoise(level=0.1),
            summary="equal ranks, memory of 1F1B, 10 % noise",
        ),
        Scenario(
            name="uniform-ample",
            spec=equal_ranks(8, 32, 16.0),
            variation=UniformNoise(level=0.1),
            summary="equal ranks, twice the memory of 1F1B, 10 % noise",
        ),
        Scenario(
            name="few-microbatches",
            spec=equal_ranks(8, 8, 8.0),
            variation=UniformNoise(level=0.1),
            summary="as many micro-batches as ranks, 10 % noise",
        ),
        Scenario(
            name="slow-rank",
            spec=equal_ranks(8, 32, 16.0, {3: 1.3}),
            variation=UniformNoise(level=0.1),
            summary="rank 3 is 1.3 times slower, which planners know; 10 % noise",
        ),
        Scenario(
            name="heavy-last-stage",
            spec=equal_ranks(8, 32, 16.0, {7: 1.5}),
            variation=UniformNoise(level=0.1),
            summary="the last stage is 1.5 times heavier (a large head), which planners know; 10 % noise",
        ),
        Scenario(
            name="markov-stragglers",
            spec=equal_ranks(4, 8, 4.0),
            variation=Product((UniformNoise(level=0.1), MarkovStragglers())),
            summary="ranks turn 2 times slower at random for a few actions; 10 % noise",
        ),
        Scenario(
            name="variable-length",
            spec=equal_ranks(8, 32, 8.0),
            variation=Product((UniformNoise(level=0.01), MicrobatchFactor())),
            summary="micro-batches of variable length, slow on every stage alike",
        ),
        Scenario(
            name="link-delay",
            spec=equal_ranks(8, 32, 16.0),
            variation=UniformNoise(level=0.01),
            actual_transfer_ms=(0.4, 0.4, 0.4, 30.4, 0.4, 0.4, 0.4),
            summary="the link between ranks 3 and 4 is 30 ms slower than planners know",
        ),
    )
}
