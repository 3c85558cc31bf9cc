"""The pipeline as a Gymnasium environment, single and batched, on the compiled kernels."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from conductor.ir.schedule import FloatArray, Int64Array
from conductor.rl import kernels
from conductor.rl.instance import Instance
from conductor.rl.play import Float32Array
from conductor.variation import Variation


class PipelineVectorEnv(VectorEnv[Float32Array, Int64Array, FloatArray]):
    """Episodes of one pipeline under realised durations, each environment with its own draw.

    A step is one decision of one rank that has come free. Actions are slots: F, I, W of each of its
    stages in turn, then wait; `info["action_mask"]` (bool) says which may be chosen, and an illegal one is
    replaced by the first legal. The reward is the growth of the per-rank lower bound of the makespan, negative,
    in expected times of a micro-batch, so that an episode's rewards add up to bound less makespan.
    `info["makespan_ms"]` is 0 until the end. An environment that has ended begins anew at the next step.

    The observation is what the rank knows (see `kernels.observe`), its stages one behind the other.
    """

    def __init__(self, instance: Instance, variation: Variation, num_envs: int) -> None:
        """Makes the spaces and room for the episodes.

        Args:
            instance: the pipeline and its plan.
            variation: what realised durations are drawn from.
            num_envs: number of environments.
        """
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}
        self.instance = instance
        self.variation = variation
        self.num_envs = num_envs
        shape = (instance.stages_per_rank * kernels.NUM_FEATURES,)
        self.single_observation_space = Box(-np.inf, np.inf, shape, np.float32)
        self.single_action_space = Discrete(instance.num_slots)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._states = kernels.new_states(instance.arrays, num_envs)
        self._busy = np.empty((num_envs, instance.program.num_actions))
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float32Array, dict[str, Any]]:
        """New draws for all environments, and their first decisions."""
        super().reset(seed=seed)
        self._ended[:] = True
        observations, _ = self._advance(np.zeros(self.num_envs, np.int64))
        return observations, self._info()

    def step(
        self, actions: Int64Array
    ) -> tuple[Float32Array, FloatArray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One decision in every environment; in those that had ended, the first one of a new episode."""
        observations, rewards = self._advance(np.asarray(actions, np.int64))
        return observations, rewards, self._ended.copy(), np.zeros_like(self._ended), self._info()

    def _advance(self, actions: Int64Array) -> tuple[Float32Array, FloatArray]:
        instance = self.instance
        fresh = np.flatnonzero(self._ended)
        if len(fresh):
            durations = self.variation.sample(instance.program, len(fresh), self.np_random)
            self._busy[fresh] = instance.program.busy_ms(durations)
        observations = np.empty(
            (self.num_envs, instance.stages_per_rank, kernels.NUM_FEATURES), np.float32
        )
        rewards = np.empty(self.num_envs)
        slots = np.where(self._ended, -1, actions)
        kernels.step_batch(
            instance.arrays, self._states, self._busy, slots, observations, rewards
        )  # fmt: skip
        self._ended = self._states.counts[:, kernels.LEFT] <= 0
        return observations.reshape(self.num_envs, -1), rewards

    def _info(self) -> dict[str, Any]:
        choices = self._states.counts[:, kernels.CHOICES, None]
        mask = (choices >> np.arange(self.instance.num_slots) & 1).astype(np.bool_)
        return {
            "action_mask": mask,
            "rank": self._states.counts[:, kernels.RANK].copy(),
            "time_ms": self._states.numbers[:, kernels.NOW].copy(),
            "makespan_ms": self._states.numbers[:, kernels.MAKESPAN] * self._ended,
        }


class PipelineEnv(gymnasium.Env[Float32Array, np.int64]):
    """One pipeline: `PipelineVectorEnv` with a single environment, see there."""

    def __init__(self, instance: Instance, variation: Variation) -> None:
        """Makes the spaces and room for an episode.

        Args:
            instance: the pipeline and its plan.
            variation: what realised durations are drawn from.
        """
        self.metadata = {"render_modes": []}
        self._batch = PipelineVectorEnv(instance, variation, 1)
        self.observation_space = self._batch.single_observation_space
        self.action_space = self._batch.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float32Array, dict[str, Any]]:
        """A new draw, and its first decision."""
        super().reset(seed=seed)
        observations, info = self._batch.reset(seed=seed)
        return observations[0], _first(info)

    def step(self, action: np.int64) -> tuple[Float32Array, float, bool, bool, dict[str, Any]]:
        """Carries out a choice and goes on to the next decision."""
        observations, rewards, ended, _, info = self._batch.step(np.array([action]))
        return observations[0], float(rewards[0]), bool(ended[0]), False, _first(info)


def _first(info: dict[str, Any]) -> dict[str, Any]:
    return {name: values[0] for name, values in info.items()}
