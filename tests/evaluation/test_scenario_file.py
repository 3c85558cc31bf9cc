"""Scenario files."""

import pytest

from conductor.errors import ConductorError
from conductor.evaluation.scenario_file import load_scenario_file
from conductor.problem.presets import load_preset
from conductor.variation import MarkovStragglers, Product, UniformNoise

GOOD = """\
preset = "gpt-like"
summary = "a bad day"
actual_transfer_ms = 5

[[variation]]
kind = "uniform"
level = 0.1

[[variation]]
kind = "markov"
factor = 3.0
"""


def write(tmp_path, text):
    path = tmp_path / "day.toml"
    path.write_text(text)
    return path


def test_a_file_gives_spec_links_and_factors(tmp_path):
    scenario = load_scenario_file(write(tmp_path, GOOD))
    assert (scenario.name, scenario.summary) == ("day", "a bad day")
    assert scenario.spec == load_preset("gpt-like")
    assert scenario.actual_spec == scenario.spec.with_(transfer_ms=5.0)
    assert scenario.variation == Product((UniformNoise(level=0.1), MarkovStragglers(factor=3.0)))


def test_a_spec_file_is_found_beside_the_scenario(tmp_path):
    (tmp_path / "mine.toml").write_text(
        "num_ranks = 2\nnum_microbatches = 4\nforward_ms = 1\nbackward_input_ms = 1\n"
        "backward_weight_ms = 1\n"
    )
    assert load_scenario_file(write(tmp_path, 'spec = "mine.toml"')).spec.num_ranks == 2


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("preset = 3", "preset"),
        ("summary = 'no spec'", "one of preset and spec"),
        (GOOD + "extra = 1\n", "'extra'"),
        ("num_ranks = 4", "unknown key 'num_ranks'; a scenario has preset, spec"),
        (GOOD.replace("preset", "present", 1), "present"),
        (GOOD.replace('"uniform"', '"gauss"'), "gauss"),
        (GOOD.replace("level = 0.1", "level = 1.5"), "1.5"),
        (GOOD.replace("level = 0.1", "level = 'high'"), "uniform"),
        (GOOD.replace("actual_transfer_ms = 5", "actual_transfer_ms = [1, 2]"), "transfer_ms"),
        (GOOD.replace('"gpt-like"', '"gpt-unlike"'), "gpt-unlike"),
        ("preset = ", "TOML"),
    ],
)
def test_a_bad_file_is_one_sentence_that_names_file_and_fault(tmp_path, text, word):
    path = write(tmp_path, text)
    with pytest.raises(ConductorError) as error:
        load_scenario_file(path)
    assert str(path) in str(error.value)
    assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConductorError, match="nowhere"):
        load_scenario_file(tmp_path / "nowhere.toml")
