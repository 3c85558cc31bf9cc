"""One page that shows why one schedule is faster than another: open comparison.html."""

from conductor import load_preset
from conductor.report.metrics import metrics
from conductor.report.page import write_page
from conductor.report.simulated import migrated, simulated
from conductor.schedules.registry import build

spec = load_preset("paper")
entries = [simulated(spec, build(name, spec), title=name) for name in ("1f1b", "zb-1p")]
entries.append(migrated(spec, build("zb-1p", spec), title="zb-1p, migrating"))
write_page(entries, "comparison.html", title="The paper's four ranks, each slower than the last")
for metric in metrics(entries):
    print(f"{metric.name:24}", *(f"{value:>12}" for value in metric.values))
