from __future__ import annotations

import numpy as np
import pytest
import torch

from conductor.problem.presets import load_preset
from conductor.rl import kernels
from conductor.rl.instance import Instance
from conductor.rl.plans import best_plan
from conductor.rl.play import Decider, record
from conductor.rl.policy import ActorCritic, masked_log_probabilities
from conductor.variation import UniformNoise


@pytest.mark.parametrize("placement", [(0, 1, 2, 3), (0, 1, 2, 3, 3, 2, 1, 0), (0, 1, 2, 2, 3)])
def test_the_compiled_network_decides_as_torch_does(placement: tuple[int, ...]) -> None:
    spec = load_preset("gpt-like")
    spec = spec.on_stages(placement).with_(memory_limit=None)
    instance = Instance.of(spec, best_plan(spec))
    network = ActorCritic(
        state_dim=kernels.NUM_FEATURES, generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        network.actor.weight *= 100.0  # the first weights of the actor are near zero
    durations = UniformNoise(0.3).sample(instance.program, 20, np.random.default_rng(0))
    decisions = record(instance, durations, Decider.NETWORK, weights=network.weights())
    with torch.no_grad():
        scores, _ = network.decide(torch.from_numpy(decisions.observations))
    logs = masked_log_probabilities(scores, torch.from_numpy(decisions.choices)).numpy()
    best, chosen = logs.max(axis=1), logs[np.arange(len(logs)), decisions.slots]
    assert len(set(decisions.slots.tolist())) > 2
    # Rounding may only decide between scores that are all but equal.
    assert (best - chosen < 1e-4).all()
    assert np.mean(logs.argmax(axis=1) == decisions.slots) > 0.999


def test_sampled_choices_have_the_networks_probabilities() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=4).astype(np.float32)
    choices = 0b1101
    drawn = [kernels.pick(logits, choices, kernels.uniform(7, k)) for k in range(20_000)]
    logs = masked_log_probabilities(torch.from_numpy(logits[None]), torch.tensor([choices]))
    share = np.bincount(drawn, minlength=4) / len(drawn)
    assert np.abs(share - logs.exp().numpy()[0]).max() < 0.02
    assert share[1] == 0.0


def test_a_stage_that_a_rank_does_not_have_counts_for_nothing() -> None:
    network = ActorCritic(state_dim=5)
    one = torch.ones(1, 1, 5)
    padded = torch.cat([one, torch.zeros(1, 1, 5)], 1)
    scores, value = network.decide(one)
    padded_scores, padded_value = network.decide(padded)
    assert torch.allclose(padded_scores[:, [0, 1, 2, 6]], scores)
    assert torch.allclose(padded_value, value)
