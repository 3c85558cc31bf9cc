"""Plan a published profile and write the best schedule for the trainer."""

import conductor
from conductor.interop.torch_csv import write_torch_csv

spec = conductor.load_preset("gpt-1.5b-p8-m24").with_(memory_limit=8.0)
result = conductor.plan(spec)
for candidate in result.candidates:
    times = candidate.timeline
    print(f"{candidate.name:20} {times.makespan_ms:8.1f} ms, bubble ratio {times.bubble_ratio:.3f}")

# torchtitan and NeMo AutoModel read one stage a rank as well as several.
write_torch_csv(result.best.schedule, "best.csv")
