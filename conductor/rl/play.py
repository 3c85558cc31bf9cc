"""Whole episodes at once: the compiled environment with a decider inside, on several threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from conductor.errors import DeadlockError
from conductor.ir.schedule import FloatArray, Int64Array
from conductor.rl import kernels
from conductor.rl.instance import Instance

Float32Array = npt.NDArray[np.float32]
Weights = tuple[Float32Array, ...]
"""Weight (inputs, outputs) and bias (1, outputs) of each of the three layers that decide."""


class Decider(IntEnum):
    """Who decides."""

    NETWORK = kernels.NETWORK
    """The policy network's best choice."""
    SAMPLE = kernels.SAMPLE
    """A choice drawn with its probabilities."""
    REPLAY = kernels.REPLAY
    """The plan, strictly in order."""
    GREEDY = kernels.GREEDY
    """What could start now: I before F before W, the lowest micro-batch first."""
    READY_FIRST = kernels.READY_FIRST
    """What could start now: the first of it in the plan."""


NO_WEIGHTS: Weights = tuple(
    np.zeros(shape, np.float32)
    for shape in ((kernels.NUM_FEATURES, 1), (1, 1), (1, 1), (1, 1), (1, 4), (1, 4))
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """Episodes without their decisions.

    Attributes:
        end_ms: float64, shape (episodes, n), program order.
        peak_memory: float64, shape (episodes, num_ranks).
        bound_ms: float64, shape (episodes,); per-rank bound under the realised times.
        num_decisions: int64, shape (episodes,).
    """

    end_ms: FloatArray
    peak_memory: FloatArray
    bound_ms: FloatArray
    num_decisions: Int64Array

    @property
    def makespan_ms(self) -> FloatArray:
        """Shape (episodes,)."""
        makespan: FloatArray = self.end_ms.max(axis=1)
        return makespan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decisions:
    """All decisions of some episodes, one episode after the other; T of them.

    Attributes:
        observations: float32, shape (T, stages a rank, NUM_FEATURES).
        choices: int64, shape (T,); bits of the slots that could be chosen.
        slots: int64, shape (T,); what was chosen.
        rewards: float32, shape (T,).
        episode_offsets: int64, shape (episodes + 1,).
        makespan_ms: float64, shape (episodes,).
    """

    observations: Float32Array
    choices: Int64Array
    slots: Int64Array
    rewards: Float32Array
    episode_offsets: Int64Array
    makespan_ms: FloatArray


def play(
    instance: Instance,
    durations_ms: npt.ArrayLike,
    decider: Decider,
    *,
    weights: Weights = NO_WEIGHTS,
    stay: float = 0.0,
    rng: np.random.Generator | None = None,
    threads: int = 1,
) -> Played:
    """Plays an episode for each draw of durations.

    Args:
        instance: the pipeline and its plan.
        durations_ms: realised, in program order, shape (episodes, n) or (n,).
        decider: who decides.
        weights: of the network, for the first two deciders.
        stay: for them, how much the plan's next action, or waiting for it, is preferred: added to its score.
        rng: for `Decider.SAMPLE`.
        threads: to spread the episodes over; it changes no result.
    """
    busy = instance.program.busy_ms(durations_ms)
    episodes = len(busy)
    seeds = _seeds(rng, episodes)
    end_ms = np.empty_like(busy)
    peak = np.empty((episodes, instance.spec.num_ranks))
    bound = np.empty(episodes)
    decisions = np.empty(episodes, np.int64)

    def run(part: slice) -> None:
        kernels.rollout(
            instance.arrays, busy[part], int(decider), weights, np.float32(stay), seeds[part], end_ms[part],
            peak[part], bound[part], decisions[part],
        )  # fmt: skip

    _spread(run, episodes, threads)
    _check(decisions)
    return Played(end_ms=end_ms, peak_memory=peak, bound_ms=bound, num_decisions=decisions)


def record(
    instance: Instance,
    durations_ms: npt.ArrayLike,
    decider: Decider,
    *,
    weights: Weights = NO_WEIGHTS,
    rng: np.random.Generator | None = None,
    part: slice = slice(None),
    threads: int = 1,
) -> Decisions:
    """Plays episodes as `play` does and keeps every decision, for training.

    Only the given part of the episodes is played; which part it is changes none of them.
    """
    busy = instance.program.busy_ms(durations_ms)
    seeds = _seeds(rng, len(busy))[part]
    busy = busy[part]
    episodes, room = len(busy), 2 * busy.shape[1]
    observations = np.empty(
        (episodes, room, instance.stages_per_rank, kernels.NUM_FEATURES), np.float32
    )
    choices = np.empty((episodes, room), np.int64)
    slots = np.empty((episodes, room), np.int64)
    rewards = np.empty((episodes, room), np.float32)
    makespan = np.empty(episodes)
    lengths = np.empty(episodes, np.int64)

    def run(part: slice) -> None:
        kernels.record(
            instance.arrays, busy[part], int(decider), weights, seeds[part], observations[part],
            choices[part], slots[part], rewards[part], makespan[part], lengths[part],
        )  # fmt: skip

    _spread(run, episodes, threads)
    _check(lengths)
    used = np.arange(room) < lengths[:, None]
    return Decisions(
        observations=observations[used],
        choices=choices[used],
        slots=slots[used],
        rewards=rewards[used],
        episode_offsets=np.concatenate([[0], np.cumsum(lengths)]),
        makespan_ms=makespan,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparisons:
    """Some decisions of sampled episodes, with what every choice leads to; T of them.

    Attributes:
        observations: float32, shape (T, stages a rank, NUM_FEATURES).
        choices: int64, shape (T,); bits of the slots that could be chosen.
        slots: int64, shape (T,); what was chosen.
        outcomes: float32, shape (T, slots); makespan with each choice when the network's best follows, under
            the same durations, negative, in expected times of a micro-batch; 0 for what could not be chosen.
        episode_offsets: int64, shape (episodes + 1,).
        makespan_ms: float64, shape (episodes,).
    """

    observations: Float32Array
    choices: Int64Array
    slots: Int64Array
    outcomes: Float32Array
    episode_offsets: Int64Array
    makespan_ms: FloatArray


def compare(
    instance: Instance,
    durations_ms: npt.ArrayLike,
    *,
    weights: Weights,
    share: float,
    rng: np.random.Generator,
    part: slice = slice(None),
    threads: int = 1,
) -> Comparisons:
    """Plays sampled episodes as `record` does and tries every choice at a share of the decisions."""
    busy = instance.program.busy_ms(durations_ms)
    seeds = _seeds(rng, len(busy))[part]
    busy = busy[part]
    # Hardly an episode has more decisions than actions.
    episodes, room = len(busy), 16 + int(1.5 * share * busy.shape[1])
    shape = (episodes, room)
    observations = np.empty((*shape, instance.stages_per_rank, kernels.NUM_FEATURES), np.float32)
    choices, slots = np.empty(shape, np.int64), np.empty(shape, np.int64)
    outcomes = np.empty((*shape, instance.num_slots))
    makespan = np.empty(episodes)
    lengths = np.empty(episodes, np.int64)

    def run(part: slice) -> None:
        kernels.compare(
            instance.arrays, busy[part], weights, share, seeds[part], observations[part],
            choices[part], slots[part], outcomes[part], makespan[part], lengths[part],
        )  # fmt: skip

    _spread(run, episodes, threads)
    _check(lengths)
    used = np.arange(room) < lengths[:, None]
    return Comparisons(
        observations=observations[used],
        choices=choices[used],
        slots=slots[used],
        outcomes=(-outcomes[used] / instance.arrays.scale).astype(np.float32),
        episode_offsets=np.concatenate([[0], np.cumsum(lengths)]),
        makespan_ms=makespan,
    )


def _seeds(rng: np.random.Generator | None, episodes: int) -> npt.NDArray[np.uint64]:
    if rng is None:
        return np.zeros(episodes, np.uint64)
    return rng.integers(0, 2**63, episodes).astype(np.uint64)


def _spread(run: Callable[[slice], None], episodes: int, threads: int) -> None:
    """Runs parts of the episodes on threads (the kernels let go of the interpreter's lock)."""
    if threads <= 1:
        run(slice(0, episodes))
        return
    edges = np.linspace(0, episodes, threads + 1).astype(int)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, [slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]))


def _check(counts: Int64Array) -> None:
    if (counts < 0).any():
        raise DeadlockError(
            "no rank can start anything: memory is held by unfinished micro-batches"
        )
