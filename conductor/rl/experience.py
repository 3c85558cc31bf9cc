"""Experience: the decisions of many episodes, as tensors to learn from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from conductor.ir.schedule import FloatArray, Int64Array
from conductor.rl.play import Comparisons, Decider, Decisions, Float32Array, compare, record
from conductor.rl.processes import Processes
from conductor.rl.returns import discounted_returns
from conductor.rl.source import Source, Task
from conductor.rl.training import Training


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Experience:
    """Decisions of all processes, T of them, of which this process holds its own.

    They are in order of tasks, episodes and time, whatever the number of processes.

    Attributes:
        observations: float32, shape (own, stages a rank, NUM_FEATURES); zeros for a stage that the
            rank does not have.
        choices: int64, shape (own,); bits of the slots that could be chosen.
        slots: int64, shape (own,); what was chosen.
        returns: float32, shape (own,); discounted.
        baselines: float32, shape (own,); by how much the episode did better than the others of its draw.
        outcomes: float32, shape (own, slots); what each choice leads to, see `Comparisons`. None where
            decisions were not compared; where they were, returns and baselines are 0.
        places: int64, shape (own,); which of all decisions are this process's own.
        tasks: int64, shape (T,); the task of each decision.
        rewards: float64, shape (episodes,); undiscounted sum of each episode.
    """

    observations: Tensor
    choices: Tensor
    slots: Tensor
    returns: Tensor
    baselines: Tensor
    outcomes: Tensor | None
    places: Int64Array
    tasks: Int64Array
    rewards: FloatArray

    def __len__(self) -> int:
        """Number of decisions of all processes."""
        return len(self.tasks)

    def batches(
        self, size: int, rng: np.random.Generator
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """All decisions in random order, in equal parts of about the size (at least one part).

        Yields:
            Of each part, int64: its decisions among all, those of them that are held here, and their rows.
        """
        order = torch.from_numpy(rng.permutation(len(self))).to(self.slots.device)
        batches = order.tensor_split(max(1, round(len(self) / size)))
        if len(self.slots) == len(self):
            yield from ((batch, batch, batch) for batch in batches)
            return
        rows = torch.full_like(order, -1)
        rows[torch.from_numpy(self.places).to(order.device)] = torch.arange(
            len(self.slots), device=order.device
        )
        for batch in batches:
            own = batch[rows[batch] >= 0]
            yield batch, own, rows[own]


def collect(
    training: Training[Source],
    plays: Sequence[tuple[Task, Decider]],
    episodes: int,
    *,
    episodes_per_draw: int,
    processes: Processes,
    threads: int,
) -> Experience:
    """Plays episodes and keeps every decision.

    Args:
        training: gives weights, discount and the generator of draws and samples, which is in the same state
            in every process, here and afterwards.
        plays: the tasks and who decides; the episodes are spread evenly over them.
        episodes: of all tasks and processes together.
        episodes_per_draw: how many of them share a draw.
        processes: who plays.
        threads: of this process.
    """
    weights, discount = training.network.weights(), training.config.discount
    compared = training.config.compared
    parts: list[Decisions | Comparisons] = []
    own: list[Int64Array] = []
    tasks: list[int] = []
    for index, (task, decider) in enumerate(plays):
        count = _share(episodes, len(plays), index, episodes_per_draw)
        draws = -(-count // episodes_per_draw)
        durations = task.variation.sample(task.instance.program, draws, training.rng)
        durations = np.repeat(durations, episodes_per_draw, axis=0)[:count]
        share = processes.share(count, together=episodes_per_draw)
        if decider == Decider.SAMPLE and compared:
            part: Decisions | Comparisons = compare(
                task.instance, durations, weights=weights, rng=training.rng, part=share,
                share=compared / task.instance.program.num_actions, threads=threads,
            )  # fmt: skip
        else:
            rng = training.rng if decider == Decider.SAMPLE else None
            part = record(
                task.instance, durations, decider, weights=weights, rng=rng, part=share,
                threads=threads,
            )  # fmt: skip
        parts.append(part)
        own.append(np.arange(len(tasks), len(tasks) + count)[share])
        tasks += [index] * count
    device = next(training.network.parameters()).device
    observations, choices, slots, outcomes = _padded(parts)
    if not training.config.may_wait:  # nothing learns of it either
        choices &= ~(1 << 3 * observations.shape[1])
    returns = [
        np.zeros(len(part.slots), np.float32)
        if isinstance(part, Comparisons)
        else discounted_returns(part, discount)
        for part in parts
    ]
    episode = np.concatenate(own)
    lengths = np.concatenate([np.diff(part.episode_offsets) for part in parts])
    rewards = np.concatenate([_totals(part) for part in parts])
    baselines = np.concatenate([_above_group(part, episodes_per_draw) for part in parts])
    all_lengths = processes.joined(lengths, episode, episodes).astype(np.int64)
    firsts = np.cumsum(all_lengths) - all_lengths
    return Experience(
        observations=torch.from_numpy(observations).to(device),
        choices=torch.from_numpy(choices).to(device),
        slots=torch.from_numpy(slots).to(device),
        returns=torch.from_numpy(np.concatenate(returns)).to(device),
        baselines=torch.from_numpy(baselines).to(device),
        outcomes=None if outcomes is None else torch.from_numpy(outcomes).to(device),
        places=np.repeat(firsts[episode], lengths) + _count_up(lengths),
        tasks=np.repeat(tasks, all_lengths),
        rewards=processes.joined(rewards, episode, episodes),
    )


def _share(episodes: int, num_tasks: int, index: int, together: int) -> int:
    """Episodes of a task, in whole groups as far as they go."""
    groups = -(-episodes // together)
    first, last = (min(groups * k // num_tasks * together, episodes) for k in (index, index + 1))
    return last - first


def _padded(
    parts: Sequence[Decisions | Comparisons],
) -> tuple[Float32Array, Int64Array, Int64Array, Float32Array | None]:
    """Observations, choices, slots and outcomes of all parts on the largest number of stages a rank; wait is
    last."""
    most = max(part.observations.shape[1] for part in parts)
    observations, choices, slots, outcomes = [], [], [], []
    for part in parts:
        stages = part.observations.shape[1]
        wait, last = 3 * stages, 3 * most
        may_wait = part.choices >> wait & 1
        observations.append(
            np.pad(part.observations, ((0, 0), (0, most - stages), (0, 0)))
            if stages < most
            else part.observations
        )
        choices.append(part.choices ^ may_wait << wait | may_wait << last)
        slots.append(np.where(part.slots == wait, last, part.slots))
        if isinstance(part, Comparisons):
            of_stages, of_wait = part.outcomes[:, :wait], part.outcomes[:, wait:]
            outcomes.append(np.hstack([np.pad(of_stages, ((0, 0), (0, last - wait))), of_wait]))
    return (
        np.concatenate(observations), np.concatenate(choices), np.concatenate(slots),
        np.concatenate(outcomes) if outcomes else None,
    )  # fmt: skip


def _totals(decisions: Decisions | Comparisons) -> FloatArray:
    """Sum of the rewards of each episode; where decisions were compared, its makespan, negative, in ms."""
    if isinstance(decisions, Comparisons):
        return -decisions.makespan_ms
    lengths = np.diff(decisions.episode_offsets)
    episodes = np.repeat(np.arange(len(lengths)), lengths)
    totals: FloatArray = np.bincount(episodes, decisions.rewards, len(lengths)).astype(np.float64)
    return totals


def _above_group(decisions: Decisions | Comparisons, episodes_per_draw: int) -> Float32Array:
    """By how much each decision's episode did better than the mean of its draw, shape (T,)."""
    if isinstance(decisions, Comparisons):
        return np.zeros(len(decisions.slots), np.float32)
    totals = _totals(decisions)
    groups = np.arange(len(totals)) // episodes_per_draw
    above = totals - (np.bincount(groups, totals) / np.bincount(groups))[groups]
    return np.repeat(above, np.diff(decisions.episode_offsets)).astype(np.float32)


def _count_up(lengths: Int64Array) -> Int64Array:
    """0 to length - 1 for each length, one behind the other."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
