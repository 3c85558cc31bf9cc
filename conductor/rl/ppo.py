"""Proximal policy optimisation, top to bottom: clone an expert, then play, update, play, update.

Source: Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv 1707.06347); the advantages are
discounted returns less the critic's value, without a GAE parameter, as in the paper.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import numpy as np
import torch
from torch import Tensor

from conductor.ir.schedule import FloatArray
from conductor.problem.spec import PipelineSpec
from conductor.rl.cloning import best_expert, clone, minibatches
from conductor.rl.config import TrainingConfig
from conductor.rl.instance import Instance
from conductor.rl.kernels import NUM_FEATURES
from conductor.rl.plans import best_plan
from conductor.rl.play import Decider, Decisions, Float32Array, Weights, play, record
from conductor.rl.policy import ActorCritic, masked_log_probabilities
from conductor.rl.returns import discounted_returns
from conductor.variation import Variation


@dataclass(slots=True, kw_only=True, eq=False)
class Training:
    """A training under way: everything that a checkpoint holds.

    Attributes:
        instance: the pipeline and its plan.
        variation: what realised durations are drawn from.
        config: the settings.
        seed: of everything random here.
        network: the policy as it learns.
        optimizer: Adam.
        rng: of draws, samples and minibatches.
        num_episodes: how many it is to play; the entropy coefficient falls over them.
        episodes: played so far.
        expert: whom it was cloned from; None before.
        best_weights: the network's state with the smallest mean makespan on the validation draws.
        best_ms: that mean.
        history: (episodes, mean makespan on the validation draws) of each update.
    """

    instance: Instance
    variation: Variation
    config: TrainingConfig
    seed: int
    network: ActorCritic
    optimizer: torch.optim.Optimizer
    rng: np.random.Generator
    num_episodes: int
    episodes: int = 0
    expert: Decider | None = None
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    best_ms: float = np.inf
    history: list[tuple[int, float]] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether all episodes are played."""
        return self.expert is not None and self.episodes >= self.num_episodes

    def best_policy(self) -> Weights:
        """The best policy so far, as arrays."""
        network = ActorCritic(state_dim=self.network.state_dim, hidden=self.config.hidden)
        network.load_state_dict(self.best_weights)
        return network.weights()


def start_training(
    spec: PipelineSpec,
    variation: Variation,
    config: TrainingConfig,
    *,
    num_episodes: int,
    seed: int,
    device: str = "cpu",
) -> Training:
    """A training on a spec that has not begun, from the best plan by expected times."""
    instance = Instance.of(spec, best_plan(spec))
    return new_training(
        instance, variation, config, num_episodes=num_episodes, seed=seed, device=device
    )


def new_training(
    instance: Instance,
    variation: Variation,
    config: TrainingConfig,
    *,
    num_episodes: int,
    seed: int,
    device: str = "cpu",
) -> Training:
    """A training that has not begun. The network's weights depend on the seed alone."""
    _one_torch_thread()
    network = ActorCritic(
        state_dim=NUM_FEATURES,
        hidden=config.hidden,
        generator=torch.Generator().manual_seed(seed),
    ).to(device)
    return Training(
        instance=instance,
        variation=variation,
        config=config,
        seed=seed,
        network=network,
        optimizer=make_optimizer(network, config),
        rng=np.random.default_rng([seed, 0]),
        num_episodes=num_episodes,
    )


def make_optimizer(network: ActorCritic, config: TrainingConfig) -> torch.optim.Optimizer:
    """Adam on all weights."""
    return torch.optim.Adam(network.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)


def train(
    training: Training,
    *,
    threads: int = 1,
    on_update: Callable[[Training], None] = lambda _: None,
) -> bool:
    """Trains to the end, or until Ctrl-C.

    Args:
        training: goes on in place from where it is.
        threads: for the episodes; they change no result.
        on_update: called after the cloning and after every update.

    Returns:
        Whether it came to the end. Ctrl-C stops it between two updates, where it can be resumed exactly.
    """
    _one_torch_thread()
    with _interrupts() as interrupted:
        while not training.done and not interrupted():
            if training.expert is None:
                _clone(training, threads)
            else:
                _update(training, threads)
            _validate(training, threads)
            on_update(training)
    return training.done


def _one_torch_thread() -> None:
    """Matrices here are too small to share (on a busy machine two threads take ten times as long), and the
    last bits of what is shared, first weights among them, depend on the number of threads."""
    torch.set_num_threads(1)


def _clone(training: Training, threads: int) -> None:
    config, instance = training.config, training.instance
    durations = training.variation.sample(instance.program, config.cloning_rollouts, training.rng)
    training.expert = best_expert(instance, _validation_draws(training), threads=threads)
    clone(
        training.network, training.optimizer, config, instance, durations, training.expert,
        training.rng, threads=threads,
    )  # fmt: skip


def _update(training: Training, threads: int) -> None:
    """Plays some episodes and improves the policy on them."""
    config, instance, network = training.config, training.instance, training.network
    episodes = min(config.episodes_per_update, training.num_episodes - training.episodes)
    groups = -(-episodes // config.episodes_per_draw)
    durations = training.variation.sample(instance.program, groups, training.rng)
    durations = np.repeat(durations, config.episodes_per_draw, axis=0)[:episodes]
    decisions = record(
        instance,
        durations,
        Decider.SAMPLE,
        weights=network.weights(),
        rng=training.rng,
        threads=threads,
    )
    training.episodes += episodes
    if not len(decisions.slots):  # a pipeline without a choice
        return
    device = next(network.parameters()).device
    observations = torch.from_numpy(decisions.observations).to(device)
    choices = torch.from_numpy(decisions.choices).to(device)
    slots = torch.from_numpy(decisions.slots).to(device)
    returns = torch.from_numpy(discounted_returns(decisions, config.discount)).to(device)
    with torch.no_grad():
        scores, values = network.decide(observations)
        old = _chosen(masked_log_probabilities(scores, choices), slots)
        advantages = (
            returns - values + torch.from_numpy(_group_advantage(decisions, config)).to(device)
        )
    progress = (training.episodes - episodes) / training.num_episodes
    entropy_coefficient = config.entropy_coefficient + progress * (
        config.final_entropy_coefficient - config.entropy_coefficient
    )
    for _ in range(config.update_epochs):
        for batch in minibatches(len(slots), config.batch_size, training.rng, device):
            scores, values = network.decide(observations[batch])
            logs = masked_log_probabilities(scores, choices[batch])
            advantage = advantages[batch]
            advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
            ratio = (_chosen(logs, slots[batch]) - old[batch]).exp()
            clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
            policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
            value_loss = (values - returns[batch]).square().mean()
            entropy = -(logs.exp() * logs.masked_fill(logs.isinf(), 0.0)).sum(1).mean()
            loss = (
                policy_loss + config.value_coefficient * value_loss - entropy_coefficient * entropy
            )
            training.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            training.optimizer.step()


def _chosen(logs: Tensor, slots: Tensor) -> Tensor:
    return logs.gather(1, slots.unsqueeze(1)).squeeze(1)


def _group_advantage(decisions: Decisions, config: TrainingConfig) -> Float32Array:
    """By how much each decision's episode did better than the others of its draw, shape (T,)."""
    lengths = np.diff(decisions.episode_offsets)
    if config.episodes_per_draw == 1:
        return np.zeros(int(lengths.sum()), np.float32)
    episodes = np.repeat(np.arange(len(lengths)), lengths)
    totals = np.bincount(episodes, decisions.rewards, len(lengths))
    groups = np.arange(len(totals)) // config.episodes_per_draw
    means = np.bincount(groups, totals) / np.bincount(groups)
    return (totals - means[groups])[episodes].astype(np.float32)


def _validate(training: Training, threads: int) -> None:
    """Keeps the policy if it is the best yet on the validation draws."""
    durations = _validation_draws(training)
    played = play(
        training.instance,
        durations,
        Decider.NETWORK,
        weights=training.network.weights(),
        threads=threads,
    )
    mean = float(played.makespan_ms.mean())
    training.history.append((training.episodes, mean))
    if mean < training.best_ms:
        training.best_ms = mean
        training.best_weights = {
            name: value.detach().cpu().clone()
            for name, value in training.network.state_dict().items()
        }


def _validation_draws(training: Training) -> FloatArray:
    """Draws that are the same every time and serve no gradient."""
    return training.variation.sample(
        training.instance.program,
        training.config.validation_draws,
        np.random.default_rng([training.seed, 1]),
    )


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
