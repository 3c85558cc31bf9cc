"""Training of the lending network, and its file."""

import numpy as np
import pytest

from conductor.errors import FormatError
from conductor.migration.scenarios import equal_ranks
from conductor.rl.two_tier.guesses import fit_guesses
from conductor.rl.two_tier.network import LendingNetwork
from conductor.rl.two_tier.training import (
    EvolutionConfig,
    evolve,
    lesson,
    mean_ratio,
    random_lesson,
)
from conductor.variation import (
    MarkovStragglers,
    MicrobatchFactor,
    NoVariation,
    Product,
    UniformNoise,
)

pytestmark = pytest.mark.slow  # the loop of both tiers compiles for minutes

SPEC = equal_ranks(3, 5, 3.0)
STRAGGLERS = Product((UniformNoise(0.1), MarkovStragglers()))


def a_lesson(variation, seed=0):
    return lesson(SPEC, variation, "zb-v", postpone=True, in_order=False, seed=seed)


def test_training_shortens_steps_it_was_not_trained_on():
    lessons = [a_lesson(STRAGGLERS)]
    config = EvolutionConfig(hidden=4, generations=25, pairs=6, lessons=1, draws=16)
    found = []
    network = evolve(lessons, lessons, config, 0, lambda _, ratio: found.append(ratio))
    fresh = [STRAGGLERS.sample(lessons[0].prepared.program, 400, np.random.default_rng(9))]
    assert len(found) == 2
    assert mean_ratio(lessons, fresh, network) < mean_ratio(lessons, fresh, None) - 0.005


def test_the_first_network_is_the_rule():
    one = a_lesson(STRAGGLERS)
    drawn = [STRAGGLERS.sample(one.prepared.program, 4, np.random.default_rng(1))]
    network = LendingNetwork.initial(8, np.random.default_rng(0))
    assert mean_ratio([one], drawn, network) == mean_ratio([one], drawn, None)


def test_guesses_know_a_micro_batch_by_its_earlier_stages():
    one = a_lesson(MicrobatchFactor())
    drawn = MicrobatchFactor().sample(one.prepared.program, 16, np.random.default_rng(1))
    guesses = fit_guesses(one.prepared, drawn, seen=True)
    assert (guesses.rms[[0, 2]] < [0.6, 0.2] * guesses.plain_rms[[0, 2]]).all()


def test_guesses_know_that_a_slow_rank_stays_slow():
    """Slow with 0.7 after slow, with 0.03 after fast: twice the time, so 0.67 more."""
    variation = MarkovStragglers()
    one = a_lesson(variation)
    drawn = variation.sample(one.prepared.program, 256, np.random.default_rng(1))
    guesses = fit_guesses(one.prepared, drawn, seen=True)
    assert guesses.near[0] == pytest.approx(1.03, abs=0.03)
    assert guesses.near[4] + 0.3 * guesses.near[5] == pytest.approx(0.67, abs=0.2)
    assert guesses.rms[0] < 0.9 * guesses.plain_rms[0]


def test_without_variation_everything_takes_its_time():
    one = a_lesson(NoVariation())
    guesses = fit_guesses(one.prepared, one.prepared.program.duration_ms, seen=False)
    assert guesses.near.tolist() == [1.0] + 7 * [0.0]


def test_a_random_lesson_can_run():
    one = random_lesson(np.random.default_rng(0), ranks=(2, 3))
    drawn = one.variation.sample(one.prepared.program, 2, np.random.default_rng(0))
    assert 0.3 < mean_ratio([one], [drawn], None) < 3.0


def test_a_network_survives_its_file(tmp_path):
    network = LendingNetwork.initial(3, np.random.default_rng(0))
    network = network.with_parameters(np.arange(len(network.parameters)) / 7.0)
    network.save(tmp_path / "network.npz", seed=4)
    again = LendingNetwork.load(tmp_path / "network.npz")
    assert again.parameters.tolist() == network.parameters.tolist()
    assert again.meta["seed"] == 4


def test_other_files_are_named(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, a=np.zeros(3))
    with pytest.raises(FormatError, match="holds no network"):
        LendingNetwork.load(path)
    with pytest.raises(FormatError, match="cannot read"):
        LendingNetwork.load(tmp_path / "missing.npz")
