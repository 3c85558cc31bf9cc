"""Presets: what the papers say."""

import numpy as np
import pytest

from conductor.errors import InvalidSpecError
from conductor.problem.kind import Kind
from conductor.problem.presets import load_preset, preset_names


def test_the_papers_timing_model():
    spec = load_preset("paper")
    assert (spec.num_ranks, spec.num_microbatches, spec.num_stages) == (4, 8, 4)
    slow = np.array([1.0, 1.1, 1.2, 1.3])
    np.testing.assert_allclose(spec.duration_ms[Kind.F], 10 * slow)
    np.testing.assert_allclose(spec.duration_ms[Kind.I], 10 * slow)
    np.testing.assert_allclose(spec.duration_ms[Kind.W], 7 * slow)
    assert (spec.transfer_ms, spec.blocking_transfers) == (0.4, True)
    assert (spec.activation_memory, spec.freed_at_backward_input) == (1.0, 0.5)
    assert spec.memory_limit == 4.0


def test_the_gpt_like_spec():
    spec = load_preset("gpt-like")
    assert (spec.num_ranks, spec.num_microbatches, spec.memory_limit) == (4, 8, 4.0)
    times = (spec.forward_ms, spec.backward_input_ms, spec.backward_weight_ms, spec.transfer_ms)
    assert times == (10.0, 10.0, 7.0, 0.4)
    assert not spec.blocking_transfers


@pytest.mark.parametrize(
    ("model", "ranks", "microbatches"),
    [("1.5b", 8, (24, 32, 64)), ("6.2b", 8, (24, 32, 64)), ("14.6b", 16, (48, 64, 128)),
     ("28.3b", 32, (96, 128, 256))],
)  # fmt: skip
def test_the_published_profiles(model, ranks, microbatches):
    for count in microbatches:
        spec = load_preset(f"gpt-{model}-p{ranks}-m{count}")
        assert (spec.num_ranks, spec.num_microbatches, spec.is_rank_level) == (ranks, count, True)
        assert spec.freed_at_backward_input == 0.5
        assert spec.memory_limit is None
        assert "ICLR 2024" in spec.source
        # One model takes about the same time whatever the number of micro-batches.
        first = load_preset(f"gpt-{model}-p{ranks}-m{microbatches[0]}")
        np.testing.assert_allclose(spec.duration_ms, first.duration_ms, rtol=0.03)


def test_the_v_profiles_have_two_stages_a_rank():
    names = [name for name in preset_names() if name.endswith("-v")]
    assert names == ["gpt-6.2b-p16-m48-v", "gpt-14.6b-p24-m72-v", "gpt-28.3b-p32-m96-v"]
    for name in names:
        spec = load_preset(name)
        assert spec.num_stages == 2 * spec.num_ranks
        assert spec.stage_ranks == (*range(spec.num_ranks), *reversed(range(spec.num_ranks)))
        assert spec.activation_memory == 0.5


def test_there_are_seventeen_and_each_has_its_name_and_source():
    assert len(preset_names()) == 17
    assert [load_preset(name).name for name in preset_names()] == list(preset_names())
    assert all(load_preset(name).source for name in preset_names())


@pytest.mark.parametrize(
    ("name", "near"), [("papper", "paper"), ("gpt-28b-p32-m128", "gpt-28.3b-p32-m128"), ("", "")]
)
def test_an_unknown_preset_names_the_nearest(name, near):
    with pytest.raises(InvalidSpecError, match=f"unknown preset '{name}'.*nearest is '{near}"):
        load_preset(name)
