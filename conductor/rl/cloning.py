"""Cloning: the network learns to decide as an expert does before PPO goes on from there."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from conductor.ir.schedule import FloatArray
from conductor.rl.experience import collect
from conductor.rl.instance import Instance
from conductor.rl.play import Decider, play
from conductor.rl.policy import masked_log_probabilities
from conductor.rl.processes import Processes
from conductor.rl.source import Source
from conductor.rl.training import Training
from conductor.rl.validation import held_out_draws

EXPERTS = (Decider.REPLAY, Decider.READY_FIRST, Decider.GREEDY)
"""Whom a policy may start from, the first of equals."""


def best_expert(
    instance: Instance, durations_ms: FloatArray, *, may_wait: bool = True, threads: int = 1
) -> Decider:
    """The expert with the smallest mean makespan over some draws; strict replay waits."""
    experts = EXPERTS if may_wait else EXPERTS[1:]
    means = [
        float(play(instance, durations_ms, expert, threads=threads).makespan_ms.mean())
        for expert in experts
    ]
    return experts[int(np.argmin(np.round(means, 9)))]


def clone(training: Training[Source], *, processes: Processes, threads: int) -> float:
    """Fits the actor to the best expert's choices on each task and the critic to its returns.

    Args:
        training: changed in place.
        processes: who plays and learns.
        threads: for the episodes.

    Returns:
        The share of choices that the network makes as the experts do, in the last pass.
    """
    config, network = training.config, training.network
    tasks = training.source.cloning_tasks()
    # Which expert is best no rank can see: on many pipelines it is always the plan.
    training.experts = tuple(
        Decider.REPLAY
        if training.source.relative
        else best_expert(
            task.instance, held_out_draws(training, task), may_wait=config.may_wait, threads=threads
        )
        for task in tasks
    )
    seen = collect(
        training, list(zip(tasks, training.experts, strict=True)), config.cloning_rollouts,
        episodes_per_draw=1, processes=processes, threads=threads,
    )  # fmt: skip
    if not len(seen):  # pipelines without a choice
        return 1.0
    agreed = 0
    for _ in range(config.cloning_epochs):
        agreed = 0
        for batch, _, rows in seen.batches(config.batch_size, training.rng):
            scores, values = network.decide(seen.observations.index_select(0, rows))
            logs = masked_log_probabilities(scores, seen.choices[rows])
            loss = _cross_entropy(logs, seen.slots[rows], config.label_smoothing, len(batch))
            errors = (values - seen.returns[rows]).square().sum() / len(batch)
            loss = loss + config.value_coefficient * errors
            training.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            processes.add_gradients(network)
            training.optimizer.step()
            agreed += int((logs.argmax(1) == seen.slots[rows]).sum())
    return processes.total(agreed) / len(seen)


def _cross_entropy(logs: Tensor, slots: Tensor, smoothing: float, count: int) -> Tensor:
    """Sum over rows over count; a share `smoothing` of the target is spread over the open choices."""
    chosen = logs.gather(1, slots.unsqueeze(1)).squeeze(1)
    loss = -(1.0 - smoothing) * (chosen.sum() / count)
    if smoothing:
        open_ = logs.isfinite()
        spread = logs.masked_fill(~open_, 0.0).sum(1) / open_.sum(1)
        loss = loss - smoothing * (spread.sum() / count)
    return loss
