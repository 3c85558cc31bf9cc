"""What was measured beside what was planned: a timeline of your own times, on one page with the plan."""

import numpy as np

from conductor import load_preset
from conductor.report.page import write_page
from conductor.report.simulated import simulated
from conductor.report.traced import measured
from conductor.schedules.registry import build
from conductor.simulator.program import encode
from conductor.simulator.simulate import timeline
from conductor.simulator.timeline import Timeline
from conductor.variation import UniformNoise

spec = load_preset("gpt-like")
plan = build("zb-1p", spec)

# Starts and ends as your trainer logs them, in the order of `plan`; here a noisy simulation gives them.
noise = UniformNoise(0.3).sample(encode(spec, plan), 1, np.random.default_rng(0))
log = timeline(spec, plan, noise)

run = Timeline.measured(spec, plan, log.start_ms, log.end_ms)
write_page(
    [simulated(spec, plan, title="planned"), measured(run, title="measured")],
    "run.html",
    title="A step as planned and as it ran",
)
late = run.end_ms - timeline(spec, plan).end_ms
worst = int(np.argmax(late))
print(f"{plan.action(worst)} ended {late[worst]:.1f} ms later than planned; see run.html")
