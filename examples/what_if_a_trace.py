"""Where the time of a job went, and what would help: one of its ranks is slow, and its trace shows it.

A real job's trace is a file: `conductor.interop.read_trace.read_trace("job.parquet")`.
"""

import numpy as np

import conductor
from conductor.interop.timeline_json import trace_of_timeline
from conductor.schedules.registry import build
from conductor.simulator.program import encode
from conductor.whatif.levers import lever_remedies
from conductor.whatif.whatif import analyse, straggler_remedies

spec = conductor.load_preset("gpt-like")
order = build("1f1b", spec)
program = encode(spec, order)
job = conductor.timeline(spec, order, program.duration_ms * np.where(program.ranks == 2, 1.5, 1.0))

found = analyse(trace_of_timeline(job, name="job"))
print(
    f"slowdown {found.slowdown:.2f}; by rank", {r: round(s, 2) for r, s in found.by_stage.items()}
)
for remedy in (*straggler_remedies(found), *lever_remedies(found)):
    print(f"{remedy.step_ms:7.1f} ms  {100 * remedy.gain:+5.1f} %  {remedy.name}")
