"""Scenarios of real jobs: they are what the fit makes of the traces, and they vary like them."""

import numpy as np
import pytest

from conductor.evaluation.scenario import load_scenario
from conductor.interop.straggler_trace import read_straggler_trace
from conductor.schedules.registry import build
from conductor.simulator.program import encode
from conductor.simulator.simulate import simulate
from conductor.variation.fit import fit
from conductor.whatif.graph import build_graph
from conductor.whatif.profile import profile

NAMES = {"traced-slow-worker": "AR", "traced-variable-length": "SE"}


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_fit_of_its_trace(shared_data, name):
    pytest.importorskip("pyarrow")
    trace = read_straggler_trace(shared_data / "straggler-traces" / f"trace-{NAMES[name]}.parquet")
    scenario = load_scenario(name)
    spec = profile(build_graph(trace))
    assert scenario.spec.duration_ms == pytest.approx(spec.duration_ms, abs=0.001)
    assert scenario.spec.link_ms == pytest.approx(spec.link_ms, abs=0.001)
    program = encode(spec, build("1f1b", spec))
    ours, fitted = (
        variation.sample(program, 200, np.random.default_rng(1))
        for variation in (scenario.variation, fit(trace).variation)
    )
    assert ours == pytest.approx(fitted, rel=1e-3)


def test_a_quarter_of_the_steps_have_the_slow_worker():
    scenario = load_scenario("traced-slow-worker")
    order = build("1f1b", scenario.spec)
    durations = scenario.variation.sample(
        encode(scenario.spec, order), 400, np.random.default_rng(3)
    )
    makespans = simulate(scenario.spec, order, durations).makespan_ms
    slow = makespans > 1.5 * np.median(makespans)
    assert 0.15 < slow.mean() < 0.35
