"""`conductor run --migrate`: what moves on emulated ranks, what it brings, and where it is written."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from conductor.interop.timeline_json import read_helps, read_timeline
from tests.runtime.test_run_command import conductor

SLOW = ("--straggler", "rank=1,factor=1.5")
SIZE = ("--layers", 16, "--width", 32, "--heads", 16, "--schedule", "zb-1p", "--json")


def spec_file(folder, forward_ms):
    path = folder / "ranks.toml"
    path.write_text(
        f"""name = "four ranks"
num_ranks = 4
num_microbatches = 8
forward_ms = {forward_ms}
backward_input_ms = {forward_ms}
backward_weight_ms = {0.7 * forward_ms}
transfer_ms = {0.04 * forward_ms}
memory_limit = 4
"""
    )
    return path


def urgent():
    """Before a command whose times count: no other program makes its ranks wait, where that may be asked."""
    how = ("chrt", "-r", "5")
    able = shutil.which("chrt") and not subprocess.run((*how, "true"), check=False).returncode
    return how if able else ()


def run(folder, forward_ms, *arguments, before=()):
    done = conductor(
        "--emulate", spec_file(folder, forward_ms), *SIZE, *arguments,
        before=(*before, sys.executable, "-m"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def losses(result):
    return [step["loss"] for step in result["steps"]]


def test_a_slow_rank_is_helped_and_files_hold_what_moved(tmp_path):
    step, trace = tmp_path / "step.json", tmp_path / "trace.json"
    result = run(
        tmp_path, 40, *SLOW, "--steps", 6, "--migrate", "--timeline", step, "--trace", trace
    )
    moved = result["migration"]
    assert moved["steps_on"] >= 3
    each = moved["per_step"]
    assert each["helps"] > 10
    assert each["bytes"] > 10_000
    assert each["moved_share"] > 0.03
    assert "layers" in moved["advice"]
    helps, times = read_helps(step), read_timeline(step)
    assert times.makespan_ms == result["steps"][-1]["time_ms"]
    assert len(helps.actions) == result["steps"][-1]["migration"]["helps"]
    assert (times.program.ranks[helps.actions] != helps.lenders).all()
    assert (helps.decided_ms <= helps.start_ms).all()
    assert (helps.start_ms < helps.end_ms).all()
    assert (helps.end_ms <= times.end_ms[helps.actions]).all()
    events = json.loads(trace.read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X" and e["cat"] == "migration"]
    assert len(slices) == len(helps.actions)


@pytest.mark.slow
def test_fifty_steps_lose_the_same_with_migration_and_without(tmp_path):
    plain, heads, slices = (
        run(tmp_path, 3, *SLOW, "--steps", 50, *how)
        for how in ((), ("--migrate", "--only-heads"), ("--migrate",))
    )
    assert min(moved["migration"]["steps_on"] for moved in (heads, slices)) >= 3
    assert losses(heads) == losses(plain)  # bitwise
    np.testing.assert_allclose(losses(slices), losses(plain), rtol=0.01)


@pytest.mark.timing
@pytest.mark.parametrize(
    ("arguments", "against", "least"), [(SLOW, "best", 0.12), ((), "zb-1p", 0.05)]
)
def test_measured_gain_and_prediction(tmp_path, arguments, against, least):
    # A layer a rank: the real computation beside the emulated one is small then.
    options = (*arguments, "--layers", 4, "--steps", 24, "--migrate")
    result = run(tmp_path, 40, *options, before=urgent())
    moved = result["migration"]
    on = [step for step in result["steps"][2:] if step["migration"]["is_on"]]
    # What was predicted before a step, from what had been measured until then.
    ratios = [step["time_ms"] / step["migration"]["predicted_ms"] for step in on]
    assert len(ratios) >= 20
    from conductor.planning.plan import plan
    from conductor.problem.spec_file import load_spec

    spec = load_spec(spec_file(tmp_path, 40))
    if arguments:
        slow = {
            name: tuple(
                float(t) * (1.5 if rank == 1 else 1.0)
                for rank, t in enumerate(spec.per_stage(name))
            )
            for name in ("forward_ms", "backward_input_ms", "backward_weight_ms")
        }
        spec = spec.with_(**slow)
    best = plan(spec, schedules=None if against == "best" else [against]).best
    print(moved, best.name, best.timeline.makespan_ms, np.round(ratios, 3))
    assert moved["median_on_ms"] <= (1.0 - least) * best.timeline.makespan_ms
    assert abs(np.median(ratios) - 1.0) <= 0.04


@pytest.mark.timing
def test_it_costs_at_most_a_hundredth_where_nothing_moves(tmp_path):
    plain = run(tmp_path, 40, "--steps", 12, before=urgent())
    ready = run(tmp_path, 40, "--steps", 12, "--migrate", "--movable", 0.0, before=urgent())
    assert ready["migration"]["steps_on"] == 0
    fastest = [min(step["time_ms"] for step in found["steps"][2:]) for found in (plain, ready)]
    print(fastest)
    assert fastest[1] <= 1.01 * fastest[0]


@pytest.mark.timing
def test_half_of_the_delay_of_a_burst_is_removed():
    from tests.runtime.bursts import burst_steps

    without, without_burst, with_, with_burst = (min(times) for times in burst_steps())
    print(without, without_burst, with_, with_burst)
    assert with_burst - with_ <= 0.5 * (without_burst - without)


REAL = (
    "--ranks", 2, "--layers", 3, "--width", 256, "--heads", 8, "--schedule", "zb-1p",
    "--microbatches", 8, "--steps", 16, "--json",
)  # fmt: skip
"""At the machine's own speed: three layers on two ranks, so that one rank has twice the work."""


def real(*arguments):
    done = conductor(*REAL, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_real_computation_keeps_its_losses_and_what_does_not_pay_goes_off():
    plain = losses(real())
    # With far more than heads really are, they move if messages are quick today; and without slices.
    for options in (("--movable", 0.6), ()):
        run_ = real("--migrate", *options)
        found, on = run_["migration"], [step["migration"]["is_on"] for step in run_["steps"]]
        print(found)
        held = any("hold columns" in text for text in found["decisions"])
        same = len(on) if not held else on.index(True) + 1  # then the order of summation shows
        np.testing.assert_allclose(losses(run_)[:same], plain[:same], rtol=1e-5 if held else 0.0)
        assert found["peak_bytes"] <= found["planned_bytes"]
        if found["steps_on"] > 5 and on[-1]:
            assert found["median_on_ms"] < found["median_off_ms"]
