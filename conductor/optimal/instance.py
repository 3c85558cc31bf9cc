"""A spec as whole numbers: what the exact model, its bounds and its neighbourhoods read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from conductor.ir.schedule import FloatArray, Int64Array, Schedule
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.simulator.kernels import static_starts
from conductor.simulator.program import encode

Arc = tuple[int, int, int]
"""Action, a later action, and the least time from the end of the first to the start of the second."""

CHAIN = (Kind.F, Kind.I, Kind.W)
"""What a stage does to a micro-batch, in this order. A full backward is I with W right behind it: an
order with full backwards is never shorter than the same with them split, so they need no variables."""

NO_LIMIT = 1 << 60
_TOLERANCE = 1e-9
_MAX_DENOMINATOR = 10_000_000
_RESOLUTION = 1e-7
_MEMORY_RESOLUTION = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instance:
    """All actions of a spec, numbered in program order of `serial`; times are whole units.

    Where the spec's times have a common unit, units are exact. Otherwise each time is rounded down (by
    less than a ten-millionth of the longest): an order's value never rises by that, so bounds hold.
    Actions that take no time would have no place in an order, so they get a grain, and all other times are
    multiplied by more grains than could add up on a path; `to_ms` takes them out again.

    Attributes:
        spec: on its stages.
        durations_ms: shape (len(CHAIN), num_stages, num_microbatches).
        units_per_ms: units of a millisecond, before they are cut into grains.
        num_grains: actions that take no time.
        serial: one micro-batch after another: the order that needs the least memory.
        ranks: shape (n,).
        kinds: shape (n,).
        stages: shape (n,).
        microbatches: shape (n,).
        index: shape (len(CHAIN), num_stages, num_microbatches); the number of each action.
        busy: shape (n,); what each action keeps its rank busy for.
        arcs: inputs, and the micro-batch order of each kind on each stage.
        allocated: shape (n,); memory taken at the start.
        freed: shape (n,); memory given back at the end.
        limits: shape (num_ranks,).
    """

    spec: PipelineSpec
    durations_ms: FloatArray
    units_per_ms: float
    num_grains: int
    serial: Schedule
    ranks: Int64Array
    kinds: Int64Array
    stages: Int64Array
    microbatches: Int64Array
    index: Int64Array
    busy: Int64Array
    arcs: tuple[Arc, ...]
    allocated: Int64Array
    freed: Int64Array
    limits: Int64Array

    @classmethod
    def of(cls, spec: PipelineSpec, durations_ms: npt.ArrayLike | None = None) -> Instance:
        """Numbers the actions of a spec.

        Args:
            spec: on its stages.
            durations_ms: shape (3, num_stages, num_microbatches), of F, I and W; None takes the spec's.

        Raises:
            ValueError: durations of another shape.
        """
        shape = (len(CHAIN), spec.num_stages, spec.num_microbatches)
        if durations_ms is None:
            durations = np.repeat(spec.duration_ms[list(CHAIN), :, None], shape[2], axis=2)
        else:
            durations = np.asarray(durations_ms, np.float64)
            if durations.shape != shape:
                raise ValueError(f"durations must have the shape {shape}, not {durations.shape}")
        serial = serial_schedule(spec)
        program = encode(spec, serial)
        kinds, stages = program.kinds.astype(np.int64), program.stages.astype(np.int64)
        microbatches = program.microbatches.astype(np.int64)
        index = np.empty(shape, np.int64)
        index[kinds, stages, microbatches] = np.arange(program.num_actions)
        busy_ms = program.busy_ms(durations[kinds, stages, microbatches])[0]
        units = common_unit([*busy_ms, *program.input_lag_ms.ravel()])
        busy = _whole(busy_ms, units)
        num_grains = int((busy == 0).sum())
        busy = np.where(busy, busy * _grains_per_unit(num_grains), 1)
        lags = _whole(program.input_lag_ms, units) * _grains_per_unit(num_grains)
        arcs = [
            (int(before), after, int(lag))
            for after in range(program.num_actions)
            for before, lag in zip(program.inputs[after], lags[after], strict=True)
            if before >= 0
        ]
        arcs += [
            (int(before), int(after), 0)
            for stream in index.reshape(-1, shape[2])
            for before, after in zip(stream[:-1], stream[1:], strict=True)
        ]
        allocated, freed, limits = _memory(program.allocated, program.freed, program.memory_limits)
        return cls(
            spec=spec,
            durations_ms=durations,
            units_per_ms=units,
            num_grains=num_grains,
            serial=serial,
            ranks=program.ranks.astype(np.int64),
            kinds=kinds,
            stages=stages,
            microbatches=microbatches,
            index=index,
            busy=busy,
            arcs=tuple(arcs),
            allocated=allocated,
            freed=freed,
            limits=limits,
        )

    @property
    def num_actions(self) -> int:
        """Number of actions over all ranks."""
        return len(self.busy)

    @property
    def first_actions(self) -> Int64Array:
        """The action that every rank must begin with: the first forward of its lowest stage."""
        lowest = [self.spec.stage_ranks.index(rank) for rank in range(self.spec.num_ranks)]
        return self.index[Kind.F, lowest, 0]

    def schedule_of(self, starts: Int64Array) -> Schedule:
        """The order of actions with these starts, shape (n,), units."""
        order = np.lexsort((starts, self.ranks))
        return Schedule.from_arrays(
            name="optimal",
            stage_ranks=self.spec.stage_ranks,
            num_microbatches=self.spec.num_microbatches,
            kinds=self.kinds[order],
            stages=self.stages[order],
            microbatches=self.microbatches[order],
            rank_offsets=self.serial.rank_offsets,
        )

    def starts_of(self, schedule: Schedule) -> Int64Array:
        """Starts of the actions, shape (n,), units, when a schedule of F, I and W runs as it stands."""
        program = encode(self.spec, schedule)
        number = self.index[program.kinds, program.stages, program.microbatches]
        lags = _whole(program.input_lag_ms, self.units_per_ms) * _grains_per_unit(self.num_grains)
        starts = np.empty(self.num_actions, np.int64)
        starts[number] = static_starts(
            program.order, program.rank_offsets, program.ranks, program.inputs,
            lags.astype(np.float64), self.busy[number].astype(np.float64),
        )  # fmt: skip
        return starts

    def value_of(self, starts: Int64Array, *, stage_span: bool) -> int:
        """Makespan, or the longest span of a rank, of actions with these starts."""
        ends = np.zeros(self.spec.num_ranks, np.int64)
        np.maximum.at(ends, self.ranks, starts + self.busy)
        if stage_span:
            ends -= starts[self.first_actions]
        return int(ends.max())

    def to_ms(self, value: int) -> float:
        """Milliseconds of a value or a bound, without grains."""
        return (value + self.num_grains) // _grains_per_unit(self.num_grains) / self.units_per_ms


def _grains_per_unit(num_grains: int) -> int:
    """A span is an end less a start, so it is off by up to all grains either way."""
    return 2 * num_grains + 1


def serial_schedule(spec: PipelineSpec) -> Schedule:
    """One micro-batch after another, each forward through all stages and back."""
    stages = np.arange(spec.num_stages)
    kinds = np.concatenate([np.full(len(stages), Kind.F), np.tile((Kind.I, Kind.W), len(stages))])
    walk = np.concatenate([stages, np.repeat(stages[::-1], 2)])
    count = spec.num_microbatches
    ranks = np.tile(np.asarray(spec.stage_ranks)[walk], count)
    order = np.argsort(ranks, kind="stable")
    return Schedule.from_arrays(
        name="serial",
        stage_ranks=spec.stage_ranks,
        num_microbatches=count,
        kinds=np.tile(kinds, count)[order],
        stages=np.tile(walk, count)[order],
        microbatches=np.repeat(np.arange(count), len(walk))[order],
        rank_offsets=np.searchsorted(ranks[order], np.arange(spec.num_ranks + 1)),
    )


def split_backwards(schedule: Schedule) -> Schedule:
    """The same order with each full backward as I with W right behind it.

    Each stage's I and W then go in micro-batch order, which a full backward may have left: micro-batches
    are alike, so whichever comes k-th can be called number k, and nothing gets later.
    """
    full = schedule.kinds == Kind.B
    source = np.repeat(np.arange(schedule.num_actions), 1 + full)
    kinds = np.where(full, Kind.I, schedule.kinds)[source]
    kinds[1:][(source[1:] == source[:-1])] = Kind.W
    ends = np.concatenate([[0], np.cumsum(1 + full)])
    stages, microbatches = schedule.stages[source], schedule.microbatches[source]
    for stage in range(schedule.num_stages):
        for kind in (Kind.I, Kind.W):
            microbatches[(kinds == kind) & (stages == stage)] = np.arange(schedule.num_microbatches)
    return Schedule.from_arrays(
        name=schedule.name,
        stage_ranks=schedule.stage_ranks,
        num_microbatches=schedule.num_microbatches,
        kinds=kinds,
        stages=stages,
        microbatches=microbatches,
        rank_offsets=ends[schedule.rank_offsets],
    )


def common_unit(values: Iterable[float], resolution: float = _RESOLUTION) -> float:
    """How many of the largest unit of which all values are multiples fit in 1.

    Where there is no such unit, or it is too small to be meant: `resolution` of the largest value.

    >>> common_unit([10.4, 7.0, 0.0])
    5.0
    >>> common_unit([1 / 3, 0.5])
    6.0
    """
    distinct = sorted({float(value) for value in values if value > 0.0})
    denominator = 1
    for value in distinct:
        fraction = Fraction(value).limit_denominator(_MAX_DENOMINATOR // 100)
        denominator = math.lcm(denominator, fraction.denominator)
        if denominator > _MAX_DENOMINATOR or abs(float(fraction) - value) > _TOLERANCE * value:
            return 1.0 / (resolution * distinct[-1])
    divisor = math.gcd(*(round(value * denominator) for value in distinct))
    return denominator / max(1, divisor)


def _whole(values: FloatArray, units: float) -> Int64Array:
    """Values in units: the nearest whole number where it is meant, else the one below."""
    scaled = values * units
    nearest = np.rint(scaled)
    meant = np.abs(scaled - nearest) <= _TOLERANCE * np.maximum(1.0, scaled)
    return np.where(meant, nearest, np.floor(scaled)).astype(np.int64)


def _memory(
    allocated: FloatArray, freed: FloatArray, limits: FloatArray
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Memory as whole numbers; what an action frees on its chain adds up to what it took.

    A limit is a little generous, as everywhere, for sums of floats.
    """
    bounded = np.isfinite(limits)
    units = common_unit([*allocated, *freed, *limits[bounded]], _MEMORY_RESOLUTION)
    whole = np.full(len(limits), NO_LIMIT)
    whole[bounded] = np.floor(limits[bounded] * units * (1.0 + _TOLERANCE) + _TOLERANCE)
    return (
        np.rint(allocated * units).astype(np.int64),
        np.rint(freed * units).astype(np.int64),
        whole,
    )
