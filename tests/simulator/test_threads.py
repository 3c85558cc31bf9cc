"""Simulating leaves the threads of other libraries alone."""

import numpy as np
import pytest

from conductor.problem.presets import load_preset
from conductor.schedules.registry import build
from conductor.simulator.program import encode
from conductor.simulator.simulate import simulate
from conductor.variation import UniformNoise


@pytest.mark.parametrize("execution", ["static", "ready-first"])
def test_torch_keeps_its_number_of_threads(execution):
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        spec = load_preset("gpt-like")
        plan = build("zb-1p", spec)
        durations = UniformNoise(0.1).sample(encode(spec, plan), 20_000, np.random.default_rng(0))
        simulate(spec, plan, durations, execution=execution)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
