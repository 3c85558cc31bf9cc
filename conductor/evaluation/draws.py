"""The draws that every scheduler meets."""

from __future__ import annotations

import numpy as np

from conductor.evaluation.scenario import Scenario
from conductor.ir.schedule import FloatArray
from conductor.simulator.program import Program


def fresh_draws(scenario: Scenario, program: Program, draws: int, seed: int) -> FloatArray:
    """Realised durations that no planner has seen, shape (draws, n), program order.

    More draws leave the earlier ones as they are only for the same number: compare equal numbers.
    """
    return scenario.variation.sample(program, draws, np.random.default_rng((seed, 2)))
