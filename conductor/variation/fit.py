"""Fitting the variation of a traced job: what is shared by whom, and how well the fit says it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from conductor.errors import FormatError
from conductor.ir.schedule import FloatArray, Int8Array, Int32Array, Int64Array
from conductor.ir.trace import Operation, Trace
from conductor.problem.kind import Kind
from conductor.variation.lognormal import LognormalNoise
from conductor.variation.markov import MarkovStragglers
from conductor.variation.pauses import ForwardPauses
from conductor.variation.spells import find_spells
from conductor.variation.step import StepFactor
from conductor.variation.traced import TracedMicrobatches, TracedReplicas, probabilities
from conductor.variation.variation import Factor, Product

TERMS = ("stage", "rank", "step", "micro-batch", "own")
DIRECTIONS = ("forward", "backward")
QUANTILES = (0.5, 0.9, 0.99)
_MIN_PARTS, _MAX_PARTS = 2, 4
"""Quantities of a micro-batch: its work, what tells F and B apart, and what tells stages apart."""
_CLOSE = 0.02
"""Difference of correlations at which no further quantity is looked for."""
_POINTS = 129
"""Quantiles kept of each."""
_NEAR_1 = 0.005
"""Ranks that differ by no more are alike."""
_SAMPLES = 100_000
"""Micro-batches sampled to measure the errors."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A model of variation, fitted.

    Attributes:
        variation: turns the trace's mean durations into durations like the traced ones.
        levels: by direction (forward, backward) and term: standard deviation of the logarithm; that of the
            stages among median replicas, that of the ranks from the median replica.
        shares: by direction and term: share of the variance of the logarithm.
        slowest: direction, replica, stage and factor of the rank that is farthest above its stage's
            median replica.
        correlation_error: greatest difference between samples and trace in the correlation of two
            (direction, stage) pairs over micro-batches, steps and replicas.
        quantile_errors: greatest relative difference of the median, the 90 % and the 99 % quantile.
        distance: greatest distance of the distribution functions (Kolmogorov and Smirnov's).
        num_microbatches: traced micro-batches, over all steps and replicas.
        spells: what comes and goes, the last part of `variation`; None: nothing does.
        usual_share: mean duration without spells over that with them, by direction and stage: what
            expected times are to be multiplied by where `variation` is used.
    """

    variation: Product
    levels: dict[str, dict[str, float]]
    shares: dict[str, dict[str, float]]
    slowest: tuple[str, int, int, float]
    correlation_error: float
    quantile_errors: dict[float, float]
    distance: float
    num_microbatches: int
    spells: ForwardPauses | MarkovStragglers | None
    usual_share: FloatArray


def fit(trace: Trace, *, seed: int = 0) -> Fit:
    """Fits stage, rank, step, micro-batch and own factors, in this order, each to what is left.

    Before them, pauses of forwards or ranks that turn slow for a while are taken out (`find_spells`).
    What varies by chance alone is not taken for a factor: the spread of the means of ranks and steps is
    brought down by what the spread within them makes of it. In `levels` and `shares` the micro-batch's
    part is what all stages feel; what only some do counts as their own.

    Args:
        trace: with at least two micro-batches; steps that miss an action are left out.
        seed: of the samples that the errors are measured on.

    Raises:
        FormatError: no step is whole.
    """
    whole, starts, numbers = _tables(trace)
    stage_ranks = np.zeros(trace.num_stages, np.int64)
    stage_ranks[trace.stages[trace.is_action]] = trace.ranks[trace.is_action]
    table, spells = find_spells(whole, starts, stage_ranks)
    means = table.mean(axis=(2, 3, 4), keepdims=True)
    left = table / means
    ranks = _shrunk(left.mean(axis=(2, 4), keepdims=True), left, axes=(2, 4))
    left = left / ranks
    steps, step_factor = _steps(left, numbers)
    left = left / steps
    microbatches, noise = _microbatches(left)
    parts: list[Factor] = []
    if np.abs(ranks - 1.0).max() > _NEAR_1:
        factors = np.swapaxes(ranks[:, :, 0, :, 0], 1, 2).round(6).tolist()
        parts.append(TracedReplicas(forward=_rows(factors[0]), backward=_rows(factors[1])))
    if steps.min() < steps.max():
        parts.append(step_factor)
    # Own noise comes last: what it draws depends on the number of stages, and all before stays paired.
    # So do spells.
    variation = Product((*parts, microbatches, noise, *([spells] if spells else [])))

    usual = np.median(table.mean(axis=(2, 4), keepdims=True), axis=3, keepdims=True)
    over = ranks * means / usual
    direction, stage, _, replica, _ = np.unravel_index(int(np.argmax(over)), over.shape)
    levels = {
        name: _levels(usual[k], over[k], steps[k], left[k], own)
        for k, (name, own) in enumerate(zip(DIRECTIONS, _own(microbatches, noise), strict=True))
    }
    traced = whole.reshape(2 * table.shape[1], -1)
    samples = _samples(variation, means[:, :, 0, 0, 0], table.shape[4], seed)
    ratios = np.quantile(samples, QUANTILES, axis=1) / np.quantile(traced, QUANTILES, axis=1)
    errors = np.abs(ratios - 1.0).max(axis=1).tolist()
    return Fit(
        variation=variation,
        levels=levels,
        shares={name: _shares(by_term) for name, by_term in levels.items()},
        slowest=(
            DIRECTIONS[direction],
            int(np.unique(trace.dp_ranks)[replica]),
            int(stage),
            float(over.max()),
        ),
        correlation_error=_correlation_error(traced, samples),
        quantile_errors=dict(zip(QUANTILES, errors, strict=True)),
        distance=max(map(_distance, traced, samples)),
        num_microbatches=traced.shape[1],
        spells=spells,
        usual_share=(means / whole.mean(axis=(2, 3, 4), keepdims=True))[:, :, 0, 0, 0],
    )


def _own(microbatches: TracedMicrobatches, noise: LognormalNoise) -> tuple[FloatArray, FloatArray]:
    """Spread of each stage's own, by direction: noise, and what only some stages feel of a micro-batch."""
    further = (microbatches.forward[1:], microbatches.backward[1:])
    levels = (noise.forward, noise.backward)
    forward, backward = (
        np.sqrt(np.square([own, *loads]).sum(axis=0))
        for own, loads in zip(levels, further, strict=True)
    )
    return forward, backward


def _levels(
    usual: FloatArray, over: FloatArray, steps: FloatArray, left: FloatArray, own: FloatArray
) -> dict[str, float]:
    """Standard deviation of the logarithm by term, of one direction."""
    of_own = float(np.sqrt(np.mean(own**2)))
    inside = float(np.log(left).var(axis=(1, 2, 3)).mean())
    return {
        "stage": float(np.log(usual).std()),
        "rank": float(np.sqrt(np.mean(np.log(over) ** 2))),
        "step": float(np.log(steps).std()),
        "micro-batch": max(0.0, inside - of_own**2) ** 0.5,
        "own": of_own,
    }


def _shares(levels: dict[str, float]) -> dict[str, float]:
    whole = sum(level**2 for level in levels.values()) or 1.0
    return {term: level**2 / whole for term, level in levels.items()}


def durations(trace: Trace) -> tuple[FloatArray, Int64Array]:
    """Durations by direction (forward, backward), stage, step, replica and micro-batch; and the steps.

    A split backward counts as one. Steps in which some replica misses an action are left out.

    Raises:
        FormatError: no step is whole.
    """
    table, _, numbers = _tables(trace)
    return table, numbers


def _tables(trace: Trace) -> tuple[FloatArray, FloatArray, Int64Array]:
    """As `durations`, with the starts in the same shape."""
    mine = trace.where(trace.is_action & (trace.duration_ms > 0.0))
    if not len(mine):
        raise FormatError(f"{trace.name}: no action takes any time")
    numbers, step = np.unique(mine.steps, return_inverse=True)
    replica = np.unique(mine.dp_ranks, return_inverse=True)[1]
    backward = (mine.operations != Operation.FORWARD).astype(np.int64)
    shape = (
        2, mine.num_stages, int(step.max()) + 1, int(replica.max()) + 1,
        int(mine.microbatches.max()) + 1,
    )  # fmt: skip
    table = np.zeros(shape)
    place = (backward, mine.stages, step, replica, mine.microbatches)
    np.add.at(table, place, mine.duration_ms)
    starts = np.full(shape, np.inf)
    np.minimum.at(starts, place, mine.start_ms)
    whole = (table > 0.0).all(axis=(0, 1, 3, 4))
    if not whole.any():
        raise FormatError(f"{trace.name}: no step has every action of every replica")
    return np.ascontiguousarray(table[:, :, whole]), starts[:, :, whole], numbers[whole]


def _shrunk(means: FloatArray, values: FloatArray, axes: tuple[int, ...]) -> FloatArray:
    """Means of groups of values, drawn to 1 by how much of their spread is chance."""
    count = np.prod([values.shape[axis] for axis in axes])
    chance = float(np.mean(values.var(axis=axes))) / count
    seen = float(np.mean(np.square(means - 1.0)))
    return 1.0 + (means - 1.0) * max(0.0, 1.0 - chance / seen if seen else 0.0)


def _steps(left: FloatArray, numbers: Int64Array) -> tuple[FloatArray, StepFactor]:
    """Factor of each step by direction and stage, one quantity a step, and its model."""
    num_stages, num_steps = left.shape[1:3]
    means = left.mean(axis=(3, 4)).reshape(2 * num_stages, num_steps)
    axes, sizes, scores = np.linalg.svd(
        means - means.mean(axis=1, keepdims=True), full_matrices=False
    )
    load, x = axes[:, 0] * sizes[0] / np.sqrt(num_steps), scores[0] * np.sqrt(num_steps)
    # All stages share a micro-batch, so what it adds to the means by chance has one quantity too.
    along = np.tensordot(axes[:, 0], left.reshape(2 * num_stages, *left.shape[2:]), axes=1)
    chance = float(along.var(axis=(1, 2)).mean()) / (left.shape[3] * left.shape[4])
    load = load * max(0.0, 1.0 - chance * num_steps / sizes[0] ** 2 if sizes[0] else 0.0) ** 0.5
    sign = -1.0 if load.sum() < 0.0 else 1.0
    by_place = (sign * load).round(6).reshape(2, num_stages).tolist()
    next_to = np.flatnonzero(np.diff(numbers) == 1)
    correlation = float(np.mean(x[next_to] * x[next_to + 1])) if len(next_to) >= 3 else 0.0
    model = StepFactor(
        forward=tuple(by_place[0]),
        backward=tuple(by_place[1]),
        correlation=round(min(max(correlation, 0.0), 0.99), 6),
    )
    factors = np.exp(np.outer(load, x)).reshape(2, num_stages, num_steps, 1, 1)
    return factors, model


def _microbatches(left: FloatArray) -> tuple[TracedMicrobatches, LognormalNoise]:
    """The shared part of micro-batches, and own noise."""
    num_stages = left.shape[1]
    rows = left.reshape(2 * num_stages, -1)
    rows = rows - rows.mean(axis=1, keepdims=True)
    axes, sizes, scores = np.linalg.svd(rows, full_matrices=False)
    scale = np.sqrt(rows.shape[1])
    spread = rows.std(axis=1)
    spread[spread == 0.0] = 1.0
    covariance = rows @ rows.T / rows.shape[1]
    for parts in range(1, min(_MAX_PARTS, len(rows) - 1) + 1):
        loads = axes[:, :parts] * sizes[:parts] / scale
        missed = (covariance - loads @ loads.T) / np.outer(spread, spread)
        np.fill_diagonal(missed, 0.0)
        if parts >= _MIN_PARTS and np.abs(missed).max() <= _CLOSE:
            break
    scores = scores[:parts] * scale
    # The sign of a part is free: more is slower.
    signs = np.where(loads.sum(axis=0) < 0.0, -1.0, 1.0)
    loads, scores = loads * signs, scores * signs[:, None]
    rest = rows - loads @ scores
    own = rest.std(axis=1).reshape(2, num_stages).round(6).tolist()
    quantiles = np.quantile(scores, probabilities(_POINTS), axis=1).T.round(5)
    by_part = loads.T.reshape(parts, 2, num_stages).round(6)
    return (
        TracedMicrobatches(
            quantiles=_rows(quantiles.tolist()),
            forward=_rows(by_part[:, 0].tolist()),
            backward=_rows(by_part[:, 1].tolist()),
        ),
        LognormalNoise(forward=tuple(own[0]), backward=tuple(own[1])),
    )


def _rows(values: list[list[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Grid:
    """One F and one B of each stage and micro-batch, one stage a rank."""

    duration_ms: FloatArray
    kinds: Int8Array
    stages: Int32Array
    microbatches: Int32Array
    rank_offsets: Int64Array
    ranks: Int32Array = field(init=False)
    units: Int32Array = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranks", self.stages)
        object.__setattr__(self, "units", self.microbatches)


def _samples(variation: Product, means: FloatArray, num_microbatches: int, seed: int) -> FloatArray:
    """Sampled durations of each (direction, stage), as many as it takes to see quantiles."""
    num_stages, draws = means.shape[1], -(-_SAMPLES // num_microbatches)
    stage, direction, microbatch = np.indices((num_stages, 2, num_microbatches)).reshape(3, -1)
    grid = _Grid(
        duration_ms=means[direction, stage],
        kinds=np.where(direction == 0, Kind.F, Kind.B).astype(np.int8),
        stages=stage.astype(np.int32),
        microbatches=microbatch.astype(np.int32),
        rank_offsets=np.arange(num_stages + 1) * 2 * num_microbatches,
    )
    sampled = variation.sample(grid, draws, np.random.default_rng(seed))
    shaped = sampled.reshape(draws, num_stages, 2, num_microbatches)
    return np.ascontiguousarray(shaped.transpose(2, 1, 0, 3).reshape(2 * num_stages, -1))


def _correlation_error(traced: FloatArray, samples: FloatArray) -> float:
    if len(traced) < 2 or not (traced.std(axis=1) > 0.0).all():
        return 0.0
    return float(np.abs(np.corrcoef(traced) - np.corrcoef(samples)).max())


def _distance(traced: FloatArray, samples: FloatArray) -> float:
    """Greatest difference between the two distribution functions."""
    at = np.concatenate((traced, samples))
    one = np.searchsorted(np.sort(traced), at, side="right") / len(traced)
    other = np.searchsorted(np.sort(samples), at, side="right") / len(samples)
    return float(np.abs(one - other).max())
