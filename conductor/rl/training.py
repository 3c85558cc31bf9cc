"""Training: a policy as it learns, and everything that it takes to go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from conductor.problem.spec import PipelineSpec
from conductor.rl.config import TrainingConfig
from conductor.rl.kernels import NUM_FEATURES, PLAN_FEATURES
from conductor.rl.play import Decider, Weights
from conductor.rl.policy import ActorCritic
from conductor.rl.source import OneInstance, Source, one_pipeline
from conductor.rl.weights import StoredPolicy
from conductor.variation import Variation

S_co = TypeVar("S_co", bound=Source, covariant=True)


@dataclass(slots=True, kw_only=True, eq=False)
class Training(Generic[S_co]):
    """A training under way: everything that a checkpoint holds.

    Attributes:
        source: what it is trained on.
        config: the settings.
        seed: of everything random here.
        network: the policy as it learns.
        optimizer: Adam.
        rng: of draws, samples and minibatches.
        num_episodes: how many it is to play; the entropy coefficient falls over them.
        episodes: played so far.
        experts: whom it was cloned from, one a task; none if it starts from a stored policy; None before
            that.
        best_weights: the network's state with the best score.
        best_score: that score.
        history: (episodes, score): the mean makespan on held-out draws, in milliseconds or, where the
            source's tasks are of all sizes, over the per-rank bound.
        baselines: scores of strict replay of the plans and of ready-first execution, by name. Not in a
            checkpoint, like
        figures: of the last update, by name; empty before the first.
    """

    source: S_co
    config: TrainingConfig
    seed: int
    network: ActorCritic
    optimizer: torch.optim.Optimizer
    rng: np.random.Generator
    num_episodes: int
    episodes: int = 0
    experts: tuple[Decider, ...] | None = None
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    best_score: float = np.inf
    history: list[tuple[int, float]] = field(default_factory=list)
    baselines: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def progress(self) -> float:
        """Share of the episodes that lies behind."""
        return self.episodes / self.num_episodes if self.num_episodes else 1.0

    @property
    def done(self) -> bool:
        """Whether all episodes are played."""
        return bool(self.history) and self.episodes >= self.num_episodes

    def best_policy(self) -> Weights:
        """The best policy so far, as arrays."""
        return self._best().weights()

    def stored(self, meta: Mapping[str, Any]) -> StoredPolicy:
        """The best policy so far, for a file."""
        best = self._best()
        return StoredPolicy(weights=best.weights(), critic=best.critic_weights(), meta=meta)

    def start_from(self, policy: StoredPolicy, *, clone: bool = False) -> None:
        """Takes over a stored policy before anything else has happened.

        Args:
            policy: of this training's width.
            clone: whether it clones an expert still, from there.
        """
        self.network.load_arrays(policy.weights + policy.critic)
        if not clone:
            self.experts = ()

    def _best(self) -> ActorCritic:
        network = ActorCritic(state_dim=self.network.state_dim, hidden=self.config.hidden)
        network.load_state_dict(self.best_weights)
        return network


def start_training(
    spec: PipelineSpec,
    variation: Variation,
    config: TrainingConfig,
    *,
    num_episodes: int,
    seed: int,
    device: str = "cpu",
) -> Training[OneInstance]:
    """A training on a spec that has not begun, from the best plan that the settings find."""
    source = one_pipeline(spec, variation, evaluations=config.plan_evaluations)
    return new_training(source, config, num_episodes=num_episodes, seed=seed, device=device)


S = TypeVar("S", bound=Source)


def new_training(
    source: S, config: TrainingConfig, *, num_episodes: int, seed: int, device: str = "cpu"
) -> Training[S]:
    """A training that has not begun. The network's weights depend on the seed alone."""
    one_torch_thread()
    network = ActorCritic(
        state_dim=NUM_FEATURES,
        hidden=config.hidden,
        generator=torch.Generator().manual_seed(seed),
    ).to(device)
    if not config.may_wait:
        network.never_wait()
    if not config.sees_plan:
        network.hide(PLAN_FEATURES)
    return Training(
        source=source,
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


def one_torch_thread() -> None:
    """Matrices here are too small to share (on a busy machine two threads take ten times as long), and the
    last bits of what is shared, first weights among them, depend on the number of threads."""
    torch.set_num_threads(1)
