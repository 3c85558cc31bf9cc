"""Models of variation: ranges, what is shared by whom, frequencies, pairing, composition."""

import numpy as np
import pytest

from conductor.errors import InvalidSpecError
from conductor.problem.spec import PipelineSpec
from conductor.schedules.registry import build
from conductor.simulator.program import encode
from conductor.variation import (
    MarkovStragglers,
    MicrobatchFactor,
    NoVariation,
    Product,
    RankFactor,
    StageFactor,
    UniformNoise,
)

SPEC = PipelineSpec(
    num_ranks=4,
    num_microbatches=8,
    forward_ms=(10.0, 11.0, 12.0, 13.0),
    backward_input_ms=10.0,
    backward_weight_ms=7.0,
)
PROGRAM = encode(SPEC, build("zb-1p", SPEC))
ALL = [
    NoVariation(),
    UniformNoise(0.3),
    MarkovStragglers(),
    MicrobatchFactor(),
    RankFactor(),
    StageFactor(level=0.1),
    Product((UniformNoise(0.1), MarkovStragglers())),
]


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("variation", ALL, ids=lambda variation: type(variation).__name__)
def test_a_seed_gives_the_same_positive_durations_again(variation):
    durations = variation.sample(PROGRAM, 20, rng())
    assert durations.shape == (20, PROGRAM.num_actions)
    assert durations.dtype == np.float64
    assert (durations > 0).all()
    assert np.array_equal(durations, variation.sample(PROGRAM, 20, rng()))


def test_no_variation_gives_the_expected_durations():
    durations = NoVariation().sample(PROGRAM, 2, rng())
    assert durations.tolist() == [PROGRAM.duration_ms.tolist()] * 2


def test_uniform_noise_fills_its_range_evenly():
    factors = UniformNoise(0.3).factors(PROGRAM, 2000, rng())
    assert factors.min() >= 0.7
    assert factors.max() <= 1.3
    assert factors.mean() == pytest.approx(1.0, abs=0.002)
    assert factors.std() == pytest.approx(0.3 / np.sqrt(3), rel=0.01)
    apart = np.corrcoef(factors[:, :40].T) - np.eye(40)
    assert np.abs(apart).max() < 0.12


def test_uniform_noise_of_level_0_is_none():
    assert (UniformNoise(0.0).factors(PROGRAM, 3, rng()) == 1.0).all()


@pytest.mark.parametrize("level", [-0.1, 1.0, 1.5, float("nan")])
def test_uniform_noise_refuses_levels_outside_0_to_1(level):
    with pytest.raises(InvalidSpecError, match=r"\[0, 1\)"):
        UniformNoise(level)


def test_uniform_noise_is_paired_between_schedules():
    """A forward of stage 2, micro-batch 5 takes as long under 1F1B as under ZB-1p."""
    other = encode(SPEC, build("1f1b", SPEC))
    ours = UniformNoise(0.3).factors(PROGRAM, 2, rng())
    theirs = UniformNoise(0.3).factors(other, 2, rng())
    for stage in range(4):
        for microbatch in range(8):
            columns = [
                np.flatnonzero(
                    (p.kinds == 0) & (p.stages == stage) & (p.microbatches == microbatch)
                )
                for p in (PROGRAM, other)
            ]
            assert np.array_equal(ours[:, columns[0]], theirs[:, columns[1]])


def test_a_microbatch_factor_is_shared_by_all_stages_and_kinds():
    factors = MicrobatchFactor().factors(PROGRAM, 4000, rng())
    for microbatch in range(8):
        mine = factors[:, PROGRAM.microbatches == microbatch]
        assert (mine == mine[:, :1]).all()
    one_each = factors[:, PROGRAM.stages + PROGRAM.kinds == 0]
    assert one_each.shape == (4000, 8)
    heavy = one_each > 1.08
    assert heavy.mean() == pytest.approx(0.115, abs=0.006)
    assert one_each[heavy].min() >= 1.5
    assert one_each[heavy].max() <= 2.9
    assert np.abs(np.corrcoef(one_each.T) - np.eye(8)).max() < 0.1


def test_a_rank_factor_is_shared_by_its_actions():
    factors = RankFactor(level=0.05, slow_share=0.25).factors(PROGRAM, 4000, rng())
    first = factors[:, PROGRAM.rank_offsets[:-1]]
    assert (factors == first[:, PROGRAM.ranks]).all()
    slow = first > 1.05
    assert slow.mean() == pytest.approx(0.25, abs=0.02)
    assert first[slow].min() >= 1.2


def test_a_stage_factor_slows_the_last_stage():
    factors = StageFactor().factors(PROGRAM, 100, rng())
    last = factors[:, PROGRAM.stages == 3]
    assert (factors[:, PROGRAM.stages < 3] == 1.0).all()
    assert (last == last[:, :1]).all()
    assert last.min() >= 1.4
    assert last.max() <= 2.1


def test_markov_stragglers_spend_their_stationary_share_slow():
    spec = SPEC.with_(num_microbatches=200)
    program = encode(spec, build("1f1b", spec))
    factors = MarkovStragglers(factor=2.0, p_slow=0.03, p_recover=0.3).factors(program, 300, rng())
    assert set(np.unique(factors)) == {1.0, 2.0}
    slow = factors == 2.0
    assert slow[:, program.rank_offsets[:-1]].mean() == pytest.approx(0.03, abs=0.015)
    assert slow.mean() == pytest.approx(0.03 / 0.33, rel=0.05)
    rows = [
        slow[:, a:b]
        for a, b in zip(program.rank_offsets[:-1], program.rank_offsets[1:], strict=True)
    ]
    stays = np.concatenate([row[:, 1:][row[:, :-1]] for row in rows])
    assert stays.mean() == pytest.approx(0.7, abs=0.01)


def test_a_product_multiplies():
    both = Product((RankFactor(), MicrobatchFactor())).factors(PROGRAM, 3, rng())
    generator = rng()
    rank = RankFactor().factors(PROGRAM, 3, generator)
    assert np.allclose(both, rank * MicrobatchFactor().factors(PROGRAM, 3, generator))


@pytest.mark.parametrize(
    "make",
    [
        lambda: MarkovStragglers(p_slow=1.2),
        lambda: MarkovStragglers(factor=0.0),
        lambda: MicrobatchFactor(heavy=(3.0, 2.0)),
        lambda: MicrobatchFactor(level=1.0),
        lambda: RankFactor(slow_share=-0.1),
        lambda: StageFactor(last=(0.0, 1.0)),
    ],
)
def test_impossible_numbers_are_refused(make):
    with pytest.raises(InvalidSpecError, match="must be"):
        make()
