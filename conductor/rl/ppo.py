"""Proximal policy optimisation, top to bottom: clone an expert, then play, update, play, update.

Source: Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347). The advantages are
discounted returns less the critic's value, without a GAE parameter, as in the paper; or, where the settings
have decisions compared, what each choice leads to under the same durations, less the mean over the choices
(the same authors' "Trust Region Policy Optimization", arXiv 1502.05477, calls that the vine): the luck of
the draw, most of what returns vary by, is in none of them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from types import FrameType

import numpy as np
import torch
from torch import Tensor, nn

from conductor.rl.cloning import clone
from conductor.rl.experience import Experience, collect
from conductor.rl.play import Decider
from conductor.rl.policy import masked_log_probabilities
from conductor.rl.processes import ALONE, Processes
from conductor.rl.source import Source
from conductor.rl.training import S, Training, one_torch_thread
from conductor.rl.validation import Validation


def train(
    training: Training[S],
    *,
    threads: int = 1,
    processes: Processes = ALONE,
    on_update: Callable[[Training[S]], None] = lambda _: None,
) -> bool:
    """Trains to the end, or until Ctrl-C.

    Args:
        training: goes on in place from where it is.
        threads: for the episodes; they change no result.
        processes: that train together, each with an equal `training`. The result is that of one process
            up to the order of sums.
        on_update: called after the cloning and after every update.

    Returns:
        Whether it came to the end. Ctrl-C stops it between two updates, where it can be resumed exactly.
    """
    one_torch_thread()
    validation = Validation.of(training)
    training.baselines = {
        name: validation.score(decider, processes=processes, threads=threads)
        for name, decider in (("plan", Decider.REPLAY), ("ready-first", Decider.READY_FIRST))
    }
    interval = training.config.validation_interval * training.config.episodes_per_update
    with _interrupts() as interrupted:
        while not training.done and not processes.total(interrupted()):
            if training.experts is None:
                clone(training, processes=processes, threads=threads)
            elif training.history:  # else it starts from a stored policy, which is compared first
                _update(training, processes, threads)
            if training.episodes % interval == 0 or training.done:
                _validate(training, validation, processes, threads)
            on_update(training)
    return training.done


def _update(training: Training[Source], processes: Processes, threads: int) -> None:
    """Plays some episodes and improves the policy on them."""
    config, network, optimizer = training.config, training.network, training.optimizer
    begin, progress = perf_counter(), training.progress
    episodes = min(config.episodes_per_update, training.num_episodes - training.episodes)
    tasks = training.source.training_tasks(progress, training.rng)
    seen = collect(
        training, [(task, Decider.SAMPLE) for task in tasks], episodes,
        episodes_per_draw=config.episodes_per_draw, processes=processes, threads=threads,
    )  # fmt: skip
    training.episodes += episodes
    if not len(seen):  # pipelines without a choice
        return
    with torch.no_grad():
        scores, values = network.decide(seen.observations)
        old = masked_log_probabilities(scores, seen.choices)
        if seen.outcomes is None:
            old = _chosen(old, seen.slots)
            advantages = _of_all(seen.returns - values + seen.baselines, seen, processes)
        else:
            advantages = _of_choices(old, seen, processes)
    entropy_coefficient = config.entropy_coefficient + progress * (
        config.final_entropy_coefficient - config.entropy_coefficient
    )
    if config.final_learning_rate is not None:
        optimizer.param_groups[0]["lr"] = config.learning_rate + progress * (
            config.final_learning_rate - config.learning_rate
        )
    sums, steps = torch.zeros(len(_MEANS), device=old.device), 0
    for _ in range(config.update_epochs):
        for batch, own, rows in seen.batches(config.batch_size, training.rng):
            scores, values = network.decide(seen.observations.index_select(0, rows))
            logs = masked_log_probabilities(scores, seen.choices[rows])
            if seen.outcomes is None:
                everyones = advantages[batch]
                spread = everyones.std(correction=0) + 1e-8
                advantage = (advantages[own] - everyones.mean()) / spread
                gain = _chosen(logs, seen.slots[rows]) - old[rows]
                ratio, was = gain.exp(), torch.ones(())
            else:  # every choice counts, as likely as it was
                advantage = advantages[rows]
                gain = (logs - old[rows]).masked_fill(logs.isinf(), 0.0)
                ratio, was = logs.exp(), old[rows].exp()
                values = seen.returns[rows]  # no critic, and none to learn
            clipped = ratio.clamp((1.0 - config.clip) * was, (1.0 + config.clip) * was)
            policy_loss = -torch.min(ratio * advantage, clipped * advantage).sum() / len(batch)
            value_loss = (values - seen.returns[rows]).square().sum() / len(batch)
            entropy = -(logs.exp() * logs.masked_fill(logs.isinf(), 0.0)).sum() / len(batch)
            loss = (
                policy_loss + config.value_coefficient * value_loss - entropy_coefficient * entropy
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            processes.add_gradients(network)
            if config.gradient_norm is not None:
                nn.utils.clip_grad_norm_(network.parameters(), config.gradient_norm)
            optimizer.step()
            with torch.no_grad():
                kl, beyond = (ratio - was - was * gain).sum(), (was * (ratio != clipped)).sum()
                sums += torch.stack(
                    [policy_loss, value_loss, entropy, kl / len(batch), beyond / len(batch)]
                )
                steps += 1
    means = [processes.total(value) / steps for value in sums.tolist()]
    elapsed_s = perf_counter() - begin
    training.figures = {
        "reward": float(seen.rewards.mean()),
        **dict(zip(_MEANS, means, strict=True)),
        "decisions": float(len(seen)),
        "decisions_per_s": len(seen) / elapsed_s,
    }


_MEANS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction")


def _chosen(logs: Tensor, slots: Tensor) -> Tensor:
    return logs.gather(1, slots.unsqueeze(1)).squeeze(1)


def _of_all(own: Tensor, seen: Experience, processes: Processes) -> Tensor:
    """Advantages of all decisions; those of different tasks are brought to one scale."""
    values = processes.joined(own.cpu().numpy(), seen.places, len(seen))
    counts = np.bincount(seen.tasks)
    if len(counts) > 1:
        counts = np.maximum(counts, 1)
        values -= (np.bincount(seen.tasks, values) / counts)[seen.tasks]
        values /= (np.sqrt(np.bincount(seen.tasks, values**2) / counts) + 1e-8)[seen.tasks]
    return torch.from_numpy(values.astype(np.float32)).to(own.device)


def _validate(
    training: Training[Source], validation: Validation, processes: Processes, threads: int
) -> None:
    """Keeps the policy if it is the best yet on the held-out draws."""
    score = validation.score(
        Decider.NETWORK, training.network.weights(), processes=processes, threads=threads
    )
    training.history.append((training.episodes, score))
    if score < training.best_score:
        training.best_score = score
        training.best_weights = {
            name: value.detach().cpu().clone()
            for name, value in training.network.state_dict().items()
        }


def _of_choices(old: Tensor, seen: Experience, processes: Processes) -> Tensor:
    """Advantages of all choices of this process's decisions, those of each task brought to one scale."""
    assert seen.outcomes is not None
    chances = old.exp()
    above = seen.outcomes - (chances * seen.outcomes).sum(1, keepdim=True)
    above = above.masked_fill(old.isinf(), 0.0)
    tasks = torch.from_numpy(seen.tasks[seen.places]).to(old.device)
    sizes = torch.stack([above.square().sum(1), old.isfinite().sum(1)]).double()
    sums = [torch.bincount(tasks, size, int(seen.tasks.max()) + 1).tolist() for size in sizes]
    squares, counts = ([processes.total(one) for one in row] for row in sums)
    spread = (torch.tensor(squares) / torch.tensor(counts).clamp(min=1.0)).sqrt() + 1e-8
    return above / spread.to(old.device)[tasks, None].to(above.dtype)


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C into a flag; a second one interrupts at once, as usual."""
    seen = False

    def note(_signal: int, _frame: FrameType | None) -> None:
        nonlocal seen
        seen = True
        signal.signal(signal.SIGINT, previous)

    try:
        previous = signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread: leave signals alone
        yield lambda: False
        return
    try:
        yield lambda: seen
    finally:
        signal.signal(signal.SIGINT, previous)
