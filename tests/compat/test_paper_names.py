"""The paper repository's own checks of names, defaults and shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from conductor_rl.pipeline_simulator import OperationType, PipelineSimulator
from conductor_rl.ppo_scheduler import ActorCritic, PipelineSchedulingEnv, PPOScheduler
from conductor_rl.zbpp_scheduler import ZBPPScheduler


def test_actor_critic_has_two_shared_layers_of_128_and_two_heads() -> None:
    network = ActorCritic(state_dim=20, action_dim=6)
    widths = [layer.out_features for layer in network.shared_net if isinstance(layer, nn.Linear)]
    assert widths == [128, 128]
    assert (network.actor.in_features, network.actor.out_features) == (128, 6)
    assert (network.critic.in_features, network.critic.out_features) == (128, 1)
    scores, values = network(torch.zeros(3, 20))
    assert scores.shape == (3, 6)
    assert values.shape == (3,)


def test_ppo_scheduler_has_the_papers_defaults() -> None:
    scheduler = PPOScheduler(PipelineSimulator())
    assert scheduler.lr == 3e-4
    assert scheduler.gamma == 0.99
    assert scheduler.epsilon == 0.2
    assert scheduler.epochs == 10
    assert scheduler.batch_size == 64
    assert scheduler.bc_rollouts == 64
    assert scheduler.bc_epochs == 10


def test_simulator_takes_the_papers_arguments_and_defaults() -> None:
    simulator = PipelineSimulator(
        num_devices=3, num_micro_batches=5, micro_batch_size=16, max_memory=3.0, noise_level=0.2
    )
    assert simulator.spec.num_ranks == 3
    assert simulator.spec.num_microbatches == 5
    assert simulator.spec.memory_limit == 3.0
    assert simulator.spec.forward_ms == pytest.approx((10.0, 11.0, 12.0))
    assert simulator.spec.backward_weight_ms == pytest.approx((7.0, 7.7, 8.4))
    assert simulator.micro_batch_size == 16
    default = PipelineSimulator()
    assert (default.num_devices, default.num_micro_batches, default.max_memory) == (4, 8, 4.0)
    assert (default.micro_batch_size, default.noise_level) == (32, 0.1)


def test_operations_are_the_papers() -> None:
    assert [operation.value for operation in OperationType] == ["F", "B", "W"]


def test_zbpp_scheduler_takes_341_50_without_noise() -> None:
    simulator = PipelineSimulator(noise_level=0.0)
    times = ZBPPScheduler(simulator).completion_times(simulator.sample_durations(0, 2))
    assert times == pytest.approx([341.50, 341.50])


def test_scheduling_environment_plays_an_episode() -> None:
    environment = PipelineSchedulingEnv(PipelineSimulator(num_devices=2, num_micro_batches=3))
    observation, info = environment.reset(seed=0)
    assert observation in environment.observation_space
    ended = False
    while not ended:
        slot = np.int64(np.flatnonzero(info["action_mask"])[0])
        observation, _, ended, _, info = environment.step(slot)
    assert info["makespan_ms"] > 0.0


def test_training_zero_episodes_leaves_the_cloned_policy() -> None:
    scheduler = PPOScheduler(PipelineSimulator(noise_level=0.0))
    training = scheduler.train(num_episodes=0)
    assert training.episodes == 0
    assert scheduler.evaluate().mean("policy") == pytest.approx(321.40)
