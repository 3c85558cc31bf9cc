"""Cloning: the network learns to decide as an expert does before PPO goes on from there."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from conductor.ir.schedule import FloatArray
from conductor.rl.config import TrainingConfig
from conductor.rl.instance import Instance
from conductor.rl.play import Decider, play, record
from conductor.rl.policy import ActorCritic, masked_log_probabilities
from conductor.rl.returns import discounted_returns

EXPERTS = (Decider.REPLAY, Decider.READY_FIRST, Decider.GREEDY)
"""Whom a policy may start from, the first of equals."""


def best_expert(instance: Instance, durations_ms: FloatArray, *, threads: int = 1) -> Decider:
    """The expert with the smallest mean makespan over some draws."""
    means = [
        float(play(instance, durations_ms, expert, threads=threads).makespan_ms.mean())
        for expert in EXPERTS
    ]
    return EXPERTS[int(np.argmin(np.round(means, 9)))]


def clone(
    network: ActorCritic,
    optimizer: torch.optim.Optimizer,
    config: TrainingConfig,
    instance: Instance,
    durations_ms: FloatArray,
    expert: Decider,
    rng: np.random.Generator,
    *,
    threads: int = 1,
) -> float:
    """Fits the actor to the expert's choices and the critic to its returns, under given draws.

    Args:
        network: changed in place.
        optimizer: of its parameters.
        config: epochs, batch size, label smoothing, discount.
        instance: the pipeline.
        durations_ms: shape (episodes, n).
        expert: whom to clone.
        rng: of the order of the decisions.
        threads: for the episodes.

    Returns:
        The share of choices that the network makes as the expert does, in the last pass.
    """
    device = next(network.parameters()).device
    decisions = record(instance, durations_ms, expert, threads=threads)
    observations = torch.from_numpy(decisions.observations).to(device)
    choices = torch.from_numpy(decisions.choices).to(device)
    slots = torch.from_numpy(decisions.slots).to(device)
    returns = torch.from_numpy(discounted_returns(decisions, config.discount)).to(device)
    if not len(slots):  # a pipeline without a choice
        return 1.0
    agreed = 0
    for _ in range(config.cloning_epochs):
        agreed = 0
        for batch in minibatches(len(slots), config.batch_size, rng, device):
            scores, values = network.decide(observations[batch])
            logs = masked_log_probabilities(scores, choices[batch])
            loss = _cross_entropy(logs, slots[batch], config.label_smoothing)
            loss = loss + config.value_coefficient * (values - returns[batch]).square().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
            agreed += int((logs.argmax(1) == slots[batch]).sum())
    return agreed / len(slots)


def minibatches(
    count: int, size: int, rng: np.random.Generator, device: torch.device
) -> tuple[Tensor, ...]:
    """Indices 0 to count - 1 in random order, in equal parts of about the size (at least one part)."""
    order = torch.from_numpy(rng.permutation(count)).to(device)
    return order.tensor_split(max(1, round(count / size)))


def _cross_entropy(logs: Tensor, slots: Tensor, smoothing: float) -> Tensor:
    """Mean cross entropy; a share `smoothing` of the target is spread over the open choices."""
    chosen = logs.gather(1, slots.unsqueeze(1)).squeeze(1)
    loss = -(1.0 - smoothing) * chosen.mean()
    if smoothing:
        open_ = logs.isfinite()
        spread = logs.masked_fill(~open_, 0.0).sum(1) / open_.sum(1)
        loss = loss - smoothing * spread.mean()
    return loss
