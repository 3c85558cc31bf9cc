"""Race: which starts the search goes on with, and for how long."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

from conductor.errors import DoesNotFitError
from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.schedules.memory import check_memory
from conductor.search.common_draws import CommonDraws, DurationDraws
from conductor.search.objective import TAIL_SHARE, SearchObjective, objective_value
from conductor.search.split_backward import split_backward
from conductor.search.walk import Walk
from conductor.simulator.program import encode

StopReason = Literal["budget", "bound", "interrupt", "no moves"]

FIELD = 8
"""Starts that go on, at most: the best ones."""

FIRST_ROUND = 2048
"""Evaluations in a start's first round; each later round has twice as many."""

LONGEST_ROUND = 1 << 15
"""At least: orders of many actions get `VISITS` evaluations an action."""

VISITS = 64

SETTLING = 16
"""Evaluations an action that a round from hot takes to get anywhere; shorter ones polish."""

HOT, WARM, COLD = 0.5, 0.06, 0.02
"""Temperatures in mean action times: rounds cool from hot to cold and go on where the last one
ended; every fourth polishes the best order, from warm."""

BATCH_S = 0.02
"""Time between looks at the clock and at Ctrl-C."""

FIRST_BATCH = 256
"""Evaluations before the first look at the clock."""


class Race:
    """Successive halving over walks: after each round the better half goes on, twice as long.

    A start with full backwards counts as it is, and walks split.

    Attributes:
        evaluations: orders evaluated so far.
        start_value: objective of the best start.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        starts: Sequence[Schedule],
        objective: SearchObjective,
        durations: DurationDraws | None,
        seed: int,
    ) -> None:
        """Evaluates the starts. Arguments and errors as in `improve`."""
        self.evaluations = 0
        self._walks: list[Walk] = []
        self._fixed: list[tuple[float, Schedule]] = []
        draws = None if durations is None else CommonDraws(durations)
        # equal orders once, in the order given
        orders = dict.fromkeys(
            order for given in starts for order in (given, split_backward(given))
        )
        for number, start in enumerate(orders):
            program = encode(spec, start)
            times = program.duration_ms if draws is None else draws.of(start, program)
            if start.overlaps.any() or split_backward(start) is not start:
                with suppress(DoesNotFitError):
                    check_memory(spec.on_stages(start.stage_ranks), start)
                    value = objective_value(spec, start, objective, times)
                    self._fixed.append((value, start))
                continue
            walk = Walk(
                start,
                program,
                program.busy_ms(times),
                is_span=objective == "stage-span",
                tail_share=TAIL_SHARE[objective],
                seed=seed + 7919 * number,
            )
            if walk.best_value < math.inf:
                self._walks.append(walk)
        if not self._walks and not self._fixed:
            raise DoesNotFitError("every schedule to start from needs more memory than there is")
        self.start_value = self.best_value

    @property
    def best_value(self) -> float:
        """The best objective so far."""
        return min([walk.best_value for walk in self._walks] + [value for value, _ in self._fixed])

    def best(self) -> tuple[Schedule, str]:
        """The best schedule so far and the name of its start; of equals, one that needs no search."""
        for value, schedule in self._fixed:
            if value <= self.best_value:
                return schedule, schedule.name
        walk = min(self._walks, key=lambda walk: walk.best_value)
        return walk.best_schedule, walk.schedule.name

    def run(
        self,
        *,
        deadline: float,
        evaluations: int | None,
        target: float,
        on_progress: Callable[[int, float], None] | None,
    ) -> StopReason:
        """Walks until something says stop.

        Args:
            deadline: on `time.perf_counter`.
            evaluations: most orders to evaluate.
            target: an objective that is good enough.
            on_progress: called between batches.
        """
        left = math.inf if evaluations is None else evaluations
        field = sorted(self._walks, key=lambda walk: walk.best_value)[:FIELD]
        longest = max(
            [LONGEST_ROUND, *(VISITS * walk.schedule.num_actions for walk in self._walks)]
        )
        length, number, rate = FIRST_ROUND, 0, FIRST_BATCH / BATCH_S
        while field:
            for walk in list(field):
                polish = number % 4 == 3 or length < SETTLING * walk.schedule.num_actions
                walk.begin_round(length, WARM if polish else HOT, COLD, from_best=polish)
                ahead = length
                while ahead:
                    now = time.perf_counter()
                    if self.best_value <= target:
                        return "bound"
                    if left <= 0 or now >= deadline:
                        return "budget"
                    batch = int(min(ahead, left, max(1.0, rate * min(BATCH_S, deadline - now))))
                    done = walk.advance(batch, target)
                    rate = max(done, 1) / (time.perf_counter() - now)
                    self.evaluations += done
                    left -= done
                    ahead -= done
                    if on_progress is not None:
                        on_progress(self.evaluations, self.best_value)
                    if done < batch:
                        break
                if ahead and self.best_value > target:
                    field.remove(walk)
            field.sort(key=lambda walk: walk.best_value)
            field = field[: (len(field) + 1) // 2]
            length = min(2 * length, longest)
            number += 1
        return "bound" if self.best_value <= target else "no moves"
