"""In no named scenario is the learned scheduler worse than the best of the others by more than its interval."""

from __future__ import annotations

import pytest

from conductor.evaluation.evaluate import evaluate
from conductor.evaluation.scenario import load_scenario, scenario_names
from conductor.rl.weights import SHIPPED

OTHERS = ("zb-1p", "zb-v", "best", "searched", "best+ready-first")


@pytest.mark.slow
@pytest.mark.skipif(not SHIPPED.exists(), reason="the package has no policy")
@pytest.mark.parametrize("name", scenario_names())
def test_leaving_the_plan_pays_or_is_not_done(name: str) -> None:
    (result,) = evaluate([load_scenario(name)], [*OTHERS, "rl"], draws=200, search_ms=500.0)
    rows = {row.name: row for row in result.schedulers}
    learned = rows.pop("rl")
    best = min(rows.values(), key=lambda row: row.mean_ms)
    # Against the same baseline on the same draws.
    assert learned.vs_best_static_ci95[0] <= best.vs_best_static_ci95[1] + 1e-9
