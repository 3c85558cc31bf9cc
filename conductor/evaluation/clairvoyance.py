"""The clairvoyant optimum: the best order for someone who knows the durations beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from conductor.errors import MissingExtraError
from conductor.evaluation.draws import fresh_draws
from conductor.evaluation.scheduler import Planner
from conductor.ir.schedule import FloatArray
from conductor.simulator.program import encode

LIMIT_S = 20.0
"""Time limit of each draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clairvoyant:
    """Some draws, solved knowing their durations, on the placement of the scenario's spec.

    Attributes:
        draws: solved.
        proved: of these, how many to optimality within the time limit.
        optimum_ms: mean of the best known makespans.
        bound_ms: mean of the bounds; equal where all are proved.
        mean_ms: by scheduler, its mean over the same draws. Other placements and migration can do better
            than this optimum.
    """

    draws: int
    proved: int
    optimum_ms: float
    bound_ms: float
    mean_ms: dict[str, float]


def solve_draws(
    planner: Planner, draws: int, count: int, makespans_ms: Mapping[str, FloatArray]
) -> Clairvoyant:
    """Solves the first of the fresh draws.

    Args:
        planner: of the scenario.
        draws: how many fresh draws the schedulers met.
        count: how many of these to solve.
        makespans_ms: by scheduler, shape (draws,).

    Raises:
        MissingExtraError: OR-Tools is not installed.
    """
    try:
        from conductor.optimal.instance import split_backwards
        from conductor.optimal.solve import solve
    except ImportError:
        raise MissingExtraError(
            "clairvoyant optima need OR-Tools: pip install 'conductor-pipeline[optimal]'"
        ) from None
    spec = planner.scenario.actual_spec
    known = [planner.schedule(name) for name in planner.fitting()]
    on_placement = [one for one in known if one.stage_ranks == spec.stage_ranks]
    start = split_backwards(min(on_placement, key=planner.planned_mean))
    program = encode(spec, start)
    durations = fresh_draws(planner.scenario, program, draws, planner.seed)
    count = min(count, draws)
    results = []
    for drawn in durations[:count]:
        grid = np.zeros((3, spec.num_stages, spec.num_microbatches))
        grid[start.kinds, start.stages, start.microbatches] = drawn
        results.append(
            solve(spec, durations_ms=grid, warm_start=start, time_limit_s=LIMIT_S, workers=2)
        )
    return Clairvoyant(
        draws=count,
        proved=sum(result.status == "optimal" for result in results),
        optimum_ms=float(np.mean([result.value_ms for result in results])),
        bound_ms=float(np.mean([result.bound_ms for result in results])),
        mean_ms={name: float(values[:count].mean()) for name, values in makespans_ms.items()},
    )
