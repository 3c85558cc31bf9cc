"""What variation costs: the same order, strictly followed and as a hint."""

import numpy as np

import conductor
from conductor.schedules.registry import build
from conductor.simulator.program import encode
from conductor.variation import UniformNoise

spec = conductor.load_preset("gpt-like")
schedule = build("zb-1p", spec)
for level in (0.0, 0.1, 0.2, 0.3):
    # The same draws for both: a paired comparison.
    draws = UniformNoise(level).sample(encode(spec, schedule), 500, np.random.default_rng(0))
    static = conductor.simulate(spec, schedule, draws, execution="static")
    ready = conductor.simulate(spec, schedule, draws, execution="ready-first")
    print(
        f"noise {level:.0%}: static {static.makespan_ms.mean():.1f} ms,"
        f" ready-first {ready.makespan_ms.mean():.1f} ms"
    )
