"""What comes and goes in a trace: forwards that are held up, ranks that turn slow for a while."""

from __future__ import annotations

import numpy as np

from conductor.ir.schedule import BoolArray, FloatArray, Int64Array
from conductor.variation.markov import MarkovStragglers
from conductor.variation.pauses import ForwardPauses

_LEAST_EXCESS, _LEAST_DEVIATIONS = 0.3, 8.0
"""What makes a duration too long: so much of the usual one more, and so many deviations."""
_OF_MICROBATCH = 0.25
"""Quantile of a micro-batch's ratios that tells its work: of those above, any may be in a spell."""
_LEAST_COUNT = 20
"""Fewer are no model."""
_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


def find_spells(
    table: FloatArray, starts: FloatArray, stage_ranks: Int64Array
) -> tuple[FloatArray, ForwardPauses | MarkovStragglers | None]:
    """Takes one kind of spell out of a job's durations: pauses of forwards, or else slow ranks.

    Usual is the median of a stage and direction on each replica, times what the micro-batch makes
    of it on all stages and in both directions. Pauses hit forwards ten times as often as backwards. A slow rank
    stays slow: slow actions follow each other far more often than by chance.

    Args:
        table: durations, shape (2, stages, steps, replicas, micro-batches).
        starts: of the actions, in the same shape.
        stage_ranks: rank of each stage.

    Returns:
        The durations without spells, and what makes them; None where there are none.
    """
    ratios = table / np.median(table, axis=(2, 4), keepdims=True)
    ratios /= np.quantile(ratios, _OF_MICROBATCH, axis=(0, 1), keepdims=True)
    ratios /= np.median(ratios, axis=(2, 4), keepdims=True)
    deviation = np.median(np.abs(ratios - 1.0), axis=(2, 3, 4), keepdims=True) * _DEVIATION
    long = ratios > 1.0 + np.maximum(_LEAST_EXCESS, _LEAST_DEVIATIONS * deviation)
    forwards, backwards = (int(each.sum()) for each in long)
    if forwards >= _LEAST_COUNT and forwards >= 10 * backwards:
        long[1] = False
        usual = np.where(long, table / ratios, table)
        pauses = (table - usual)[long]
        return usual, ForwardPauses(
            chance=round(forwards / long[0].size, 6),
            pause_ms=(round(float(pauses.min()), 6), round(float(pauses.max()), 6)),
        )
    if min(forwards, backwards) >= _LEAST_COUNT:
        p_slow, p_recover = _transitions(long, starts, stage_ranks)
        if 1.0 - p_recover >= max(0.3, 3.0 * float(long.mean())):
            factor = float(np.median(ratios[long]))
            return np.where(long, table / factor, table), MarkovStragglers(
                factor=round(factor, 6), p_slow=round(p_slow, 6), p_recover=round(p_recover, 6)
            )
    return table, None


def _transitions(
    slow: BoolArray, starts: FloatArray, stage_ranks: Int64Array
) -> tuple[float, float]:
    """How often a rank turns slow and recovers, from an action to the next that it runs in a step."""
    _, stage, step, replica, _ = np.indices(slow.shape).reshape(5, -1)
    rank = stage_ranks[stage]
    by = np.lexsort((starts.ravel(), step, replica, rank))
    place = np.stack((rank, replica, step))[:, by]
    state = slow.ravel()[by]
    goes_on = (place[:, 1:] == place[:, :-1]).all(axis=0)
    before, after = state[:-1][goes_on], state[1:][goes_on]
    turns = float((after & ~before).sum()) / max(int((~before).sum()), 1)
    recovers = float((before & ~after).sum()) / max(int(before.sum()), 1)
    return turns, recovers
