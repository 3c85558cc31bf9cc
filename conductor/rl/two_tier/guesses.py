"""What actions will take, told from what has ended: three linear guesses, fitted on planning draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conductor.ir.schedule import FloatArray
from conductor.migration import kernels as migration
from conductor.migration.execution import Prepared
from conductor.rl.two_tier import kernels

AHEAD = 4
"""The guess of actions that stand behind others is fitted so many places ahead."""
_RIDGE = 10.0
_OWN_TWIN = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guesses:
    """Weights of the clues (`kernels.note_clues`), each float64 of shape (NUM_CLUES,).

    Attributes:
        near: of the action that a rank begins.
        far: of actions that stand behind others.
        lent: of parts at a lender.
        rms: root mean square errors of the three, on what they were fitted on.
        plain_rms: what expecting the mean would have left.
    """

    near: FloatArray
    far: FloatArray
    lent: FloatArray
    rms: FloatArray
    plain_rms: FloatArray


def fit_guesses(
    prepared: Prepared, durations_ms: npt.ArrayLike, *, seen: bool, twins: bool = False
) -> Guesses:
    """Fits the guesses on draws that a planner may know.

    Args:
        prepared: with the rules that the draws are run under.
        durations_ms: draws of the variation, shape (draws, n).
        seen: whether a borrower knows its own pace when it asks (rules that postpone).
        twins: whether a lender's own action of that kind and micro-batch may tell of the parts. The model has
            it that they vary alike, which no real straggler does: off by default.
    """
    durations, factors = prepared.realise(durations_ms)
    layout, costs = prepared.layout, prepared.costs
    n, num_ranks = prepared.program.num_actions, prepared.program.num_ranks
    state = migration.make_state(n, num_ranks, len(layout.stream_offsets) - 1)
    log = migration.make_log(n)
    memory = kernels.make_memory(costs.where.shape[2], num_ranks, n)
    clues = np.zeros((3, len(durations), n, kernels.NUM_CLUES))
    truths = np.zeros((3, len(durations), n))
    ends_first = np.repeat([1, 0], n)
    count = 0
    for draw in range(len(durations)):
        migration.run(layout, costs, prepared.rules, state, log, durations[draw], factors[draw])
        order = np.lexsort((ends_first, np.concatenate([log.start_ms, log.end_ms])))
        count = kernels.gather_clues(
            layout, costs, state, memory, factors[draw], order, AHEAD, seen, clues[:, draw],
            truths[:, draw],
        )  # fmt: skip
    weights, rms = np.zeros((3, kernels.NUM_CLUES)), np.zeros(3)
    for guess in range(3):
        x = clues[guess, :, :count].reshape(-1, kernels.NUM_CLUES)
        y = truths[guess, :, :count].ravel() - 1.0
        if not twins:
            x[:, _OWN_TWIN:] = 0.0
        normal = x.T @ x + _RIDGE * np.eye(kernels.NUM_CLUES)
        weights[guess] = np.linalg.solve(normal, x.T @ y)
        rms[guess] = np.sqrt(np.square(x @ weights[guess] - y).mean()) if len(y) else 0.0
        weights[guess, 0] += 1.0
    plain = truths[:, :, :count].reshape(3, -1).std(axis=1) if count else np.zeros(3)
    return Guesses(near=weights[0], far=weights[1], lent=weights[2], rms=rms, plain_rms=plain)
