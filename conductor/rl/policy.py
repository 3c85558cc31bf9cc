"""The policy network: two shared layers, an actor and a critic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from conductor.rl.play import Float32Array, Weights


class ActorCritic(nn.Module):
    """A network for one stage of the deciding rank; a rank with several runs it on each.

    Attributes:
        shared_net: two layers with ReLU, shared by both heads.
        actor: scores of F, I, W of the stage, and of waiting.
        critic: expected return.
    """

    def __init__(
        self,
        *,
        state_dim: int,
        action_dim: int = 4,
        hidden: int = 128,
        generator: torch.Generator | None = None,
    ) -> None:
        """Orthogonal initial weights, small ones for the actor (as CleanRL does).

        Args:
            state_dim: length of an observation.
            action_dim: number of scores.
            hidden: width of both hidden layers.
            generator: of the initial weights.
        """
        super().__init__()
        first, second = nn.Linear(state_dim, hidden), nn.Linear(hidden, hidden)
        self.shared_net = nn.Sequential(first, nn.ReLU(inplace=True), second, nn.ReLU(inplace=True))
        self.actor = nn.Linear(hidden, action_dim)
        self.critic = nn.Linear(hidden, 1)
        self.state_dim = state_dim
        self._layers = (first, second, self.actor, self.critic)
        for layer, gain in (
            (first, 2**0.5),
            (second, 2**0.5),
            (self.actor, 0.01),
            (self.critic, 1.0),
        ):
            nn.init.orthogonal_(layer.weight, gain, generator=generator)
            nn.init.zeros_(layer.bias)

    @torch.no_grad()
    def never_wait(self) -> None:
        """Makes waiting as good as impossible, for good."""
        _pin(self.actor.weight, np.s_[3], 0.0)
        _pin(self.actor.bias, np.s_[3], -1e4)

    @torch.no_grad()
    def hide(self, features: Sequence[int]) -> None:
        """Makes the network blind to some features, for good."""
        _pin(self._layers[0].weight, np.s_[:, list(features)], 0.0)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, shape (..., action_dim), and values, shape (...)."""
        features = self.shared_net(states)
        return self.actor(features), self.critic(features).squeeze(-1)

    def decide(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of a rank's slots and values of its decisions.

        Args:
            observations: float32, shape (decisions, stages a rank, state_dim); a row of zeros stands for a
                stage that the rank does not have.

        Returns:
            Shape (decisions, 3 * stages a rank + 1), the wait last (the mean over the stages), and
            (decisions,).
        """
        if observations.shape[1] == 1:
            return self.forward(observations[:, 0])
        scores, values = self.forward(observations)
        present = observations.ne(0.0).any(-1)
        count = present.sum(-1)
        wait = (scores[..., 3] * present).sum(-1) / count
        slots = torch.cat([scores[..., :3].flatten(1), wait.unsqueeze(1)], 1)
        return slots, (values * present).sum(-1) / count

    def weights(self) -> Weights:
        """The deciding part as arrays for the compiled environment (copies)."""
        return _arrays(*self._layers[:3])

    def critic_weights(self) -> Weights:
        """The critic's weight and bias as arrays (copies)."""
        return _arrays(self.critic)

    @torch.no_grad()
    def load_arrays(self, arrays: Weights) -> None:
        """Takes over `weights` and, behind them, `critic_weights` of a network of this width."""
        for index, layer in enumerate(self._layers):
            layer.weight.copy_(torch.from_numpy(arrays[2 * index].T))
            layer.bias.copy_(torch.from_numpy(arrays[2 * index + 1][0]))


def _pin(parameter: Tensor, part: Any, value: float) -> None:
    """Sets a part of a parameter, which learns nothing from then on."""
    parameter[part] = value
    learns = torch.ones_like(parameter)
    learns[part] = 0.0
    parameter.register_hook(  # type: ignore[no-untyped-call]  # torch's
        lambda gradient: gradient * learns
    )


@torch.no_grad()
def _arrays(*layers: nn.Linear) -> Weights:
    """Weight (inputs, outputs) and bias (1, outputs) of each layer."""
    arrays: list[Float32Array] = []
    for layer in layers:
        arrays += [
            np.ascontiguousarray(layer.weight.cpu().numpy().T),
            layer.bias.cpu().numpy()[None].copy(),
        ]
    return tuple(arrays)


def masked_log_probabilities(scores: Tensor, choices: Tensor) -> Tensor:
    """Log-probabilities of the slots, -inf outside the choices.

    Args:
        scores: shape (decisions, slots).
        choices: int64, shape (decisions,); bits of the slots that may be chosen.
    """
    bits = torch.arange(scores.shape[1], device=scores.device)
    allowed = (choices.unsqueeze(1) >> bits) & 1
    return torch.log_softmax(scores.masked_fill(allowed == 0, -torch.inf), dim=1)
