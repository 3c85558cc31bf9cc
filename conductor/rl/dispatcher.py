"""The policy on one rank of a real run, from what that rank alone knows.

It fills its rank's part of the compiled environment's state and asks the same compiled functions, so that it
decides as the policy does in the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conductor.errors import InvalidScheduleError
from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.rl import kernels
from conductor.rl.instance import Instance, in_microbatch_order, split_backwards
from conductor.rl.play import Weights

_PATIENCE = 4.0


class LocalDispatcher:
    """Decides for one rank. Times are milliseconds since the step began; actions are positions in the rank's
    part of the plan. `conductor.runtime.policy.RankPolicy` says who calls what when.
    """

    def __init__(self, instance: Instance, rank: int, weights: Weights, stay: float = 0.0) -> None:
        """Makes room for a step and begins it.

        Args:
            instance: the pipeline and its plan.
            rank: for whom.
            weights: of the policy.
            stay: added to the score of what the plan does next.
        """
        p = instance.arrays
        sources = np.where(p.inputs >= 0, p.ranks[p.inputs], p.ranks[:, None])
        # A message counts as ended when it comes: its lag is over.
        self._arrays = p._replace(
            input_lags=np.where(sources == p.ranks[:, None], p.input_lags, 0.0)
        )
        self._rank = rank
        self._first = int(p.rank_offsets[rank])
        self._weights = weights
        self._stay = np.float32(stay)
        self._state = kernels.one_state(kernels.new_states(self._arrays, 1), 0)
        self._busy = np.empty(len(p.ranks))
        width = instance.num_slots
        self._buffers = (
            np.zeros((instance.stages_per_rank, kernels.NUM_FEATURES), np.float32),
            *kernels.scratch(weights),
            np.empty(width, np.float32),
        )
        self._running: tuple[int, float] | None = None
        # Loads the compiled code before a step needs it; what this changes `begin` undoes.
        self.begin()
        self.decide(-np.inf)
        self._arrive(self._first, 0.0, 0.0)
        self._running = self._first, 0.0
        self.ended(0.0)
        self.begin()

    @property
    def patience_ms(self) -> float:
        """Four times what a micro-batch takes on the slowest rank: much longer than waits that pay."""
        return _PATIENCE * float(self._arrays.scale)

    @property
    def num_decisions(self) -> int:
        """Choices made since the step began, waits included; what is no choice is not counted."""
        return int(self._state.counts[kernels.DECISIONS])

    def begin(self) -> None:
        """A step begins."""
        self._running = None
        kernels.begin_locally(self._arrays, self._state, self._rank)

    def arrived(self, message: tuple[bool, int, int], time_ms: float, realised_ms: float) -> None:
        """A message has come: whether it is a gradient, the stage it is for, its micro-batch."""
        is_gradient, stage, microbatch = message
        kind = kernels.I if is_gradient else kernels.F
        action = int(self._arrays.actions[3 * stage + kind, microbatch])
        self._arrive(action, time_ms, realised_ms)

    def _arrive(self, action: int, time_ms: float, realised_ms: float) -> None:
        kernels.arrive_locally(
            self._arrays, self._state, self._busy, action, time_ms, realised_ms
        )  # fmt: skip

    def decide(self, now_ms: float, *, timed_out: bool = False) -> int | None:
        """The action to start now, or None to wait."""
        assert self._running is None, "an action is running"
        action = kernels.decide_locally(
            self._arrays, self._state, self._weights, self._stay, self._busy, self._rank, now_ms,
            timed_out, *self._buffers,
        )  # fmt: skip
        if action < 0:
            return None
        self._running = int(action), now_ms
        return int(action) - self._first

    def ended(self, realised_ms: float) -> None:
        """The running action has ended."""
        assert self._running is not None, "no action is running"
        kernels.end_locally(
            self._arrays, self._state, self._busy, *self._running, realised_ms
        )  # fmt: skip
        self._running = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearnedPolicy:
    """A trained policy for the runtime: a `conductor.runtime.policy.Policy`.

    Attributes:
        weights: of the network.
        stay: how much the plan's next action, or waiting for it, is preferred.
    """

    weights: Weights
    stay: float = 0.0

    def runs(self, plan: Schedule) -> Schedule:
        """The plan with every full backward parted and micro-batches in order."""
        return in_microbatch_order(split_backwards(plan))

    def for_rank(self, spec: PipelineSpec, plan: Schedule, rank: int) -> LocalDispatcher:
        """The decider of one rank.

        Raises:
            InvalidScheduleError: the plan is not as `runs` gives it, or splits sequences.
            DoesNotFitError: some rank's memory holds less than one micro-batch.
        """
        instance = Instance.of(spec, plan)
        if instance.plan != plan:
            raise InvalidScheduleError(
                f"{plan.name} has full backwards or micro-batches out of order: part it with `runs`"
            )
        return LocalDispatcher(instance, rank, self.weights, self.stay)
