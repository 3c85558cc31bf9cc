"""What ranks decide must not depend on what nobody can know yet."""

import numpy as np

from conductor.rl.two_tier.tier import run
from tests.migration.test_execution import decisions
from tests.strategies import durations


def decides_alike_until_it_begins(prepared, tier, seed):
    """Two worlds that differ only in actions not begun decide alike until one of these begins."""
    rng = np.random.default_rng(seed)
    first = durations(prepared.program.duration_ms, seed)[0] + 0.01
    result = run(prepared, tier, first)
    moment = float(rng.uniform(0.0, result.makespan_ms))
    untold = result.start_ms > moment
    begun = result.help_start_ms <= moment
    costs = prepared.costs
    kinds, stages = costs.kinds[result.help_action], costs.stages[result.help_action]
    units = costs.units[result.help_action]
    twins = costs.where[kinds, costs.stand_in[stages, result.help_lender], units]
    lent = np.concatenate([twins[begun], result.help_action[begun]])  # a lender's pace is its own
    untold[lent[lent >= 0]] = False
    second = np.where(untold, first * rng.uniform(1.0, 3.0, len(first)), first)
    assert decisions(run(prepared, tier, second), moment) == decisions(result, moment)
