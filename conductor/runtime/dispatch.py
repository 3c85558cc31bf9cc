"""What a rank may run next: its part of a plan, and the state of a step. Knows no torch and no clock."""

from __future__ import annotations

from dataclasses import dataclass

from conductor.errors import InvalidScheduleError
from conductor.ir.action import Action
from conductor.ir.schedule import Schedule
from conductor.problem.kind import KIND_RULES, Kind
from conductor.problem.spec import PipelineSpec

_ROUNDING = 1.0 + 1e-9

Arrival = tuple[bool, int, int]
"""A message: whether it is a gradient, the stage it is for, its micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankPlan:
    """One rank's part of a schedule, lowered: what each action waits for. Indices are positions in it.

    Attributes:
        rank: whose part it is.
        actions: in plan order.
        missing: of each action, the number of arrivals and own actions that it waits for.
        followers: of each action, the own actions that wait for it.
        arrivals: the action that waits for each message from another rank.
        senders: the messages that come from each other rank, in the order of its plan.
        next_in_stream: of each action, the next of its stage and kind; -1 is none.
        heads: the first action of each stage and kind.
        allocated: memory that each action takes when it starts.
        freed: memory that it gives back when it ends.
        limit: memory that the rank never exceeds: the spec's limit, or the plan's own peak where that
            is higher or no limit is known.
    """

    rank: int
    actions: tuple[Action, ...]
    missing: tuple[int, ...]
    followers: tuple[tuple[int, ...], ...]
    arrivals: dict[Arrival, int]
    senders: dict[int, tuple[Arrival, ...]]
    next_in_stream: tuple[int, ...]
    heads: tuple[int, ...]
    allocated: tuple[float, ...]
    freed: tuple[float, ...]
    limit: float


def rank_plan(
    schedule: Schedule,
    rank: int,
    spec: PipelineSpec | None = None,
    *,
    forward_only: bool = False,
) -> RankPlan:
    """Lowers one rank's part of a schedule that `validate` accepts.

    Args:
        schedule: of all ranks.
        rank: whose part to lower.
        spec: activation memory and limits; None counts one unit a stage and micro-batch.
        forward_only: leave out the backward, as an evaluation does.

    Raises:
        InvalidScheduleError: the schedule splits sequences.
    """
    if schedule.num_splits > 1:
        raise InvalidScheduleError(
            f"{schedule.name} splits sequences, which the runtime cannot run"
        )
    actions = _row(schedule, rank, forward_only=forward_only)
    index = {(a.stage, a.kind, a.microbatch): i for i, a in enumerate(actions)}
    ranks = schedule.stage_ranks
    missing = [0] * len(actions)
    followers: list[list[int]] = [[] for _ in actions]
    arrivals: dict[Arrival, int] = {}
    others: set[int] = set()
    for i, action in enumerate(actions):
        for need in KIND_RULES[action.kind].inputs:
            stage = action.stage + need.stage_offset
            if not 0 <= stage < schedule.num_stages:
                continue
            missing[i] += 1
            if ranks[stage] == rank:
                source = next(
                    index[key]
                    for kind in need.kinds
                    if (key := (stage, kind, action.microbatch)) in index
                )
                followers[source].append(i)
            else:
                arrivals[action.kind is not Kind.F, action.stage, action.microbatch] = i
                others.add(ranks[stage])
    next_in_stream = [-1] * len(actions)
    tails: dict[tuple[int, Kind], int] = {}
    heads = []
    for i, action in enumerate(actions):
        stream = (action.stage, action.kind)
        if stream in tails:
            next_in_stream[tails[stream]] = i
        else:
            heads.append(i)
        tails[stream] = i
    allocated, freed, limit = _memory(actions, schedule, rank, spec, forward_only=forward_only)
    return RankPlan(
        rank=rank,
        actions=actions,
        missing=tuple(missing),
        followers=tuple(map(tuple, followers)),
        arrivals=arrivals,
        senders={
            other: _messages(schedule, other, rank, forward_only=forward_only)
            for other in sorted(others)
        },
        next_in_stream=tuple(next_in_stream),
        heads=tuple(heads),
        allocated=tuple(allocated),
        freed=tuple(freed),
        limit=limit,
    )


def _row(schedule: Schedule, rank: int, *, forward_only: bool) -> tuple[Action, ...]:
    """One rank's actions."""
    first, last = schedule.rank_offsets[rank : rank + 2].tolist()
    row = (schedule.action(i) for i in range(first, last))
    return tuple(action for action in row if not forward_only or action.kind is Kind.F)


def _messages(
    schedule: Schedule, sender: int, receiver: int, *, forward_only: bool
) -> tuple[Arrival, ...]:
    """What one rank sends to another, in the order of its plan."""
    found = []
    for action in _row(schedule, sender, forward_only=forward_only):
        target = action.stage + (1 if action.kind is Kind.F else -1)
        if (
            KIND_RULES[action.kind].sends
            and 0 <= target < schedule.num_stages
            and schedule.stage_ranks[target] == receiver
        ):
            found.append((action.kind is not Kind.F, target, action.microbatch))
    return tuple(found)


def _memory(
    actions: tuple[Action, ...],
    schedule: Schedule,
    rank: int,
    spec: PipelineSpec | None,
    *,
    forward_only: bool,
) -> tuple[list[float], list[float], float]:
    """What each action takes and frees, and the limit."""
    if forward_only:
        return [0.0] * len(actions), [0.0] * len(actions), 0.0
    units, at_input, limit = [1.0] * schedule.num_stages, 0.0, 0.0
    if spec is not None:
        spec = spec.on_stages(schedule.stage_ranks)
        units = spec.per_stage("activation_memory").tolist()
        at_input = spec.freed_at_backward_input
        limit = float(spec.memory_limits[rank])
    shares = {Kind.F: 0.0, Kind.I: at_input, Kind.W: 1.0 - at_input, Kind.B: 1.0}
    allocated = [KIND_RULES[a.kind].allocates * units[a.stage] for a in actions]
    freed = [shares[a.kind] * units[a.stage] for a in actions]
    memory = 0.0
    for taken, given in zip(allocated, freed, strict=True):
        memory += taken
        limit = max(limit, memory)
        memory -= given
    return allocated, freed, limit * _ROUNDING


class Dispatcher:
    """The state of one step on one rank.

    Ready-first execution may run an action before its turn when its inputs are there, it is the next of
    its stage and kind, and the rest of the plan before it still fits the memory limit afterwards. So the
    first action of the plan that is left over all ranks can always run, and nothing hangs: the same rule
    as the simulator's.
    """

    def __init__(self, plan: RankPlan) -> None:
        self.plan = plan
        self.num_left = len(plan.actions)
        self._missing = list(plan.missing)
        self._done = [False] * len(plan.actions)
        self._heads = list(plan.heads)
        self._cursor = 0
        self._memory = 0.0

    @property
    def planned(self) -> int:
        """The first action of the plan that has not run."""
        return self._cursor

    def is_ready(self, action: int) -> bool:
        """Whether all inputs of an action are there."""
        return self._missing[action] == 0

    def arrive(self, message: Arrival) -> None:
        """Notes a message from another rank."""
        self._missing[self.plan.arrivals[message]] -= 1

    def choose(self, *, ahead: bool) -> int | None:
        """The action to run now, or None where nothing may run yet.

        Args:
            ahead: whether a later action may run before the planned one.
        """
        if self._missing[self._cursor] == 0:
            return self._cursor
        if not ahead:
            return None
        for action in sorted(self._heads):
            if self._missing[action] == 0 and self._leaves_room(action):
                return action
        return None

    def start(self, action: int) -> None:
        """Takes the action's memory."""
        self._memory += self.plan.allocated[action]

    def finish(self, action: int) -> None:
        """Frees its memory and tells those that wait for it on this rank."""
        plan = self.plan
        self._memory -= plan.freed[action]
        self._done[action] = True
        self.num_left -= 1
        while self._cursor < len(self._done) and self._done[self._cursor]:
            self._cursor += 1
        for follower in plan.followers[action]:
            self._missing[follower] -= 1
        self._heads.remove(action)
        if plan.next_in_stream[action] >= 0:
            self._heads.append(plan.next_in_stream[action])

    def _leaves_room(self, action: int) -> bool:
        plan = self.plan
        if plan.allocated[action] == 0.0:
            return True
        memory = self._memory + plan.allocated[action]
        for other in range(self._cursor, action):
            if memory > plan.limit:
                return False
            if not self._done[other]:
                memory += plan.allocated[other]
                if memory > plan.limit:
                    return False
                memory -= plan.freed[other]
        return memory <= plan.limit
