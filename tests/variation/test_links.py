"""Links that are slower than expected: what they add, and where they count."""

import json

import numpy as np
import pytest

from conductor.cli.app import main
from conductor.errors import InvalidSpecError
from conductor.evaluation.scenario_file import load_scenario_file
from conductor.interop.torch_csv import write_torch_csv
from conductor.problem.spec import PipelineSpec
from conductor.problem.spec_file import save_spec
from conductor.schedules.registry import build
from conductor.simulator.program import encode
from conductor.variation import LinkDelay, NoVariation, Product, UniformNoise, split_links

SPEC = PipelineSpec(
    num_ranks=3, num_microbatches=1, forward_ms=10.0, backward_input_ms=10.0,
    backward_weight_ms=5.0, transfer_ms=1.0,
)  # fmt: skip
DELAY = LinkDelay(factor=2.0, extra_ms=(0.0, 7.0))
FILE = """[[variation]]
kind = "links"
factor = 2
extra_ms = [0, 7]
"""


@pytest.fixture
def files(tmp_path):
    save_spec(SPEC, tmp_path / "spec.toml")
    write_torch_csv(build("1f1b", SPEC), tmp_path / "plan.csv")
    (tmp_path / "links.toml").write_text(FILE)
    return tmp_path


def test_links_go_to_the_spec_and_factors_stay():
    noise = UniformNoise(0.1)
    rest, spec = split_links(Product((noise, DELAY, LinkDelay(extra_ms=1.0))), SPEC)
    assert rest == Product((noise,))
    assert spec == SPEC.with_(transfer_ms=(3.0, 10.0))
    for none in (noise, Product((noise,)), NoVariation()):
        assert split_links(none, SPEC) == (none, SPEC)


def test_simulate_waits_for_slow_links(capsys, files):
    arguments = ["simulate", files / "plan.csv", "--spec", files / "spec.toml", "--json"]
    assert main([*map(str, arguments), "--variation", str(files / "links.toml")]) == 0
    time = json.loads(capsys.readouterr().out)["makespan_ms"]
    # One micro-batch goes there and back: three F and three B, each link twice.
    assert time["mean"] == time["max"] == pytest.approx(3 * 10.0 + 3 * 15.0 + 2 * (2.0 + 9.0))


def test_a_scenario_has_the_spec_s_links_for_planners(files):
    (files / "day.toml").write_text('spec = "spec.toml"\nvariation_file = "links.toml"\n')
    scenario = load_scenario_file(files / "day.toml")
    assert scenario.spec.transfer_ms == 1.0
    assert scenario.actual_spec == scenario.spec.with_(transfer_ms=(2.0, 9.0))
    (files / "day.toml").write_text('spec = "spec.toml"\nactual_transfer_ms = [4, 5]\n' + FILE)
    assert load_scenario_file(files / "day.toml").actual_spec.transfer_ms == (8.0, 17.0)


def test_what_takes_durations_alone_refuses_them(capsys, files):
    with pytest.raises(InvalidSpecError, match="the variation delays links"):
        Product((DELAY,)).sample(encode(SPEC, build("1f1b", SPEC)), 1, np.random.default_rng(0))
    arguments = ["plan", "--spec", files / "spec.toml", "--objective", "mean", "--variation"]
    assert main([*map(str, arguments), str(files / "links.toml")]) == 2
    assert "links.toml delays links, which only" in capsys.readouterr().err


def test_impossible_numbers_are_refused():
    for wrong in (-1.0, float("nan"), (1.0, -2.0)):
        with pytest.raises(InvalidSpecError, match="factor must be at least 0"):
            LinkDelay(factor=wrong)
    with pytest.raises(InvalidSpecError, match="extra_ms lists 3 numbers for 2 pairs"):
        LinkDelay(extra_ms=(1.0, 2.0, 3.0)).delayed(SPEC)
