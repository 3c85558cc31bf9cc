"""Plan a profile of your own from a file: one rank is slow and memory differs."""

from pathlib import Path

import conductor

spec = conductor.load_spec(Path(__file__).parent / "uneven.toml")
result = conductor.plan(spec, objective="makespan")
print(f"{spec.name}: {result.best.name}, {result.best.timeline.makespan_ms:.1f} ms")
print(f"no order of this placement takes less than {result.best.lower_bound_ms:.1f} ms")
for name, reason in result.rejected.items():
    print(f"left out {name}: {reason}")
