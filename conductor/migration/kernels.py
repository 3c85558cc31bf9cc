"""Compiled event loop of a pipeline whose ranks lend each other compute (simple model).

One event a rank at a time, in a tournament tree over ranks; lenders in a list sorted by the time they
are expected to be free. `reference.py` does the same slowly and obviously, with the same floats.

What a decision may read: expected times, what has ended, and the elapsed time of running actions at
their block boundaries. Realised durations are read only to advance the clock.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

IDLE, HELP, RUN, END = 0, 1, 2, 3
"""What a rank's next event is: its next action can start (never, if unknown); a help ends; a block of
its action ends; its action ends."""


# The loop reads arrays out of tuples at every step; counting references to them would take ten times as
# long as the work, so it goes without (nothing is allocated in these functions) and in one piece.
_UNCOUNTED: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": False}
_inlined = numba.njit(forceinline=True, **_UNCOUNTED)
_loop = numba.njit(**_UNCOUNTED)


MAX_LENDERS = 4
"""Of one action."""


class Layout(NamedTuple):
    """The program and the streams its ranks take actions from (arrays as in `Program`)."""

    ranks: np.ndarray
    inputs: np.ndarray
    input_lag_ms: np.ndarray
    outputs: np.ndarray
    output_lag_ms: np.ndarray
    duration_ms: np.ndarray
    send_ms: np.ndarray
    allocated: np.ndarray
    freed: np.ndarray
    limits: np.ndarray
    """float64 (ranks,): the memory limit, or the plan's own peak where that is higher."""
    looks_ahead: np.ndarray
    """bool (ranks,): a forward that leaves the plan must leave room for all it overtakes."""
    rank_offsets: np.ndarray
    priority: np.ndarray
    """int32 (n,): of the ready heads of a rank's streams the smallest goes first."""
    rank_streams: np.ndarray
    """int32 (ranks + 1,): rank r takes from streams [r, r + 1)."""
    stream_offsets: np.ndarray
    stream_actions: np.ndarray
    stream_of: np.ndarray
    work_before_ms: np.ndarray
    """float64 (n,): expected work of the rank's earlier actions, in program order."""
    static: bool
    """Whether each rank has one stream: its schedule."""


class Costs(NamedTuple):
    """What moves and what it costs."""

    movable: np.ndarray
    """float64 (n,): share of the action that can move."""
    stand_in: np.ndarray
    """int32 (stages, ranks): the lender's stage that a borrower's stage runs as."""
    lend_ms: np.ndarray
    """float64 (kinds, stages, ranks): lender's expected time for the whole action."""
    where: np.ndarray
    """int32 (kinds, stages, units): action index."""
    kinds: np.ndarray
    stages: np.ndarray
    units: np.ndarray
    latency_ms: float
    part_ms: float
    parts: int


class Rules(NamedTuple):
    """The planner's knobs."""

    most_parts: np.ndarray
    """int32 (n,): at most so many parts of an action may move."""
    latest_start_ms: np.ndarray
    """float64 (n,): when each action must start lest the plan's makespan grows."""
    delay_share: float
    """A lender may come late to its next action by this share of how much more the borrower is late."""
    patience_ms: float
    """An action that starts so much before its latest start asks for no help."""
    least_gain: np.ndarray
    """float64 (n,): a help must save this share of the action."""
    max_lenders: int
    max_candidates: int
    blocks: int
    surprise: float
    """An action this share slower or faster than expected at its first block boundary is news."""
    recheck: bool
    """Whether every block boundary is a decision, news or not."""
    postpone: bool
    """Whether to decide at the first block boundary instead of the action's start."""


class State(NamedTuple):
    """Scratch of one run; a buffer, reset by `reset`."""

    tree: np.ndarray
    event_ms: np.ndarray
    event: np.ndarray
    action: np.ndarray
    free_ms: np.ndarray
    """Expected: when the rank has done all it has begun or promised."""
    by_free: np.ndarray
    place: np.ndarray
    pending: np.ndarray
    """Index of the help a rank has promised and not begun, or -1."""
    helping: np.ndarray
    memory: np.ndarray
    cursor: np.ndarray
    """The first action of each rank, in program order, that has not begun."""
    heads: np.ndarray
    missing: np.ndarray
    arrival_ms: np.ndarray
    status: np.ndarray
    expected_end_ms: np.ndarray
    local_end_ms: np.ndarray
    back_ms: np.ndarray
    outstanding: np.ndarray
    lenders: np.ndarray
    local_ms: np.ndarray
    """Per rank: realised local time of the running action after the last block boundary."""
    local_parts: np.ndarray
    block: np.ndarray
    candidates: np.ndarray
    offset_ms: np.ndarray
    slope_ms: np.ndarray
    cap: np.ndarray
    chosen: np.ndarray
    """Slots of `candidates` under consideration, and their parts."""
    given: np.ndarray
    choice: np.ndarray
    """The best lenders and their parts: (MAX_LENDERS, 2)."""


class Log(NamedTuple):
    """What happened."""

    start_ms: np.ndarray
    end_ms: np.ndarray
    moved: np.ndarray
    """int32 (n,): parts of the action that moved."""
    help_action: np.ndarray
    help_lender: np.ndarray
    help_parts: np.ndarray
    help_decided_ms: np.ndarray
    help_ready_ms: np.ndarray
    help_expected_ready_ms: np.ndarray
    help_start_ms: np.ndarray
    help_end_ms: np.ndarray
    num_helps: np.ndarray


@numba.njit(cache=True)
def make_state(n, num_ranks, num_streams):
    """Buffers for `run`."""
    size = 1
    while size < num_ranks:
        size *= 2
    return State(
        tree=np.zeros(2 * size, np.int32), event_ms=np.full(size, np.inf),
        event=np.zeros(num_ranks, np.int8), action=np.zeros(num_ranks, np.int32),
        free_ms=np.zeros(num_ranks), by_free=np.zeros(num_ranks, np.int32),
        place=np.zeros(num_ranks, np.int32), pending=np.zeros(num_ranks, np.int32),
        helping=np.zeros(num_ranks, np.int32), memory=np.zeros(num_ranks),
        cursor=np.zeros(num_ranks, np.int64),
        heads=np.zeros(num_streams, np.int32), missing=np.zeros(n, np.int8),
        arrival_ms=np.zeros(n), status=np.zeros(n, np.int8), expected_end_ms=np.zeros(n),
        local_end_ms=np.zeros(n), back_ms=np.zeros(n), outstanding=np.zeros(n, np.int8),
        lenders=np.zeros(n, np.int8), local_ms=np.zeros(num_ranks),
        local_parts=np.zeros(num_ranks, np.int32), block=np.zeros(num_ranks, np.int32),
        candidates=np.zeros(num_ranks, np.int32), offset_ms=np.zeros(num_ranks),
        slope_ms=np.zeros(num_ranks), cap=np.zeros(num_ranks, np.int32),
        chosen=np.zeros(MAX_LENDERS, np.int32), given=np.zeros(MAX_LENDERS, np.int32),
        choice=np.zeros((MAX_LENDERS, 2), np.int32),
    )  # fmt: skip


@numba.njit(cache=True)
def make_log(n):
    """Room for what `run` writes."""
    helps = MAX_LENDERS * n
    return Log(
        start_ms=np.zeros(n), end_ms=np.zeros(n), moved=np.zeros(n, np.int32),
        help_action=np.zeros(helps, np.int32), help_lender=np.zeros(helps, np.int32),
        help_parts=np.zeros(helps, np.int32), help_decided_ms=np.zeros(helps),
        help_ready_ms=np.zeros(helps), help_expected_ready_ms=np.zeros(helps),
        help_start_ms=np.zeros(helps), help_end_ms=np.zeros(helps),
        num_helps=np.zeros(1, np.int64),
    )  # fmt: skip


@_inlined
def reset(layout, state, log):
    """Before the first action."""
    num_ranks = len(layout.rank_streams) - 1
    size = len(state.event_ms)
    state.event_ms[:] = np.inf
    for rank in range(num_ranks):
        state.event[rank] = IDLE
        state.action[rank] = -1
        state.free_ms[rank] = 0.0
        state.by_free[rank] = rank
        state.place[rank] = rank
        state.pending[rank] = -1
        state.memory[rank] = 0.0
        state.cursor[rank] = layout.rank_offsets[rank]
    for leaf in range(size):
        state.tree[size + leaf] = leaf
    for node in range(size - 1, 0, -1):
        state.tree[node] = state.tree[2 * node]
    for stream in range(len(state.heads)):
        state.heads[stream] = layout.stream_offsets[stream]
    for i in range(len(layout.ranks)):
        missing = 0
        for slot in range(layout.inputs.shape[1]):
            if layout.inputs[i, slot] >= 0:
                missing += 1
        state.missing[i] = missing
        state.arrival_ms[i] = 0.0
        state.status[i] = 0
        state.outstanding[i] = 0
        state.lenders[i] = 0
        state.back_ms[i] = 0.0
        log.moved[i] = 0
    log.num_helps[0] = 0


@_inlined
def set_event(state, rank, kind, time):
    """Gives a rank its next event."""
    state.event[rank] = kind
    state.event_ms[rank] = time
    size = len(state.event_ms)
    node = (size + rank) >> 1
    while node:
        left, right = state.tree[2 * node], state.tree[2 * node + 1]
        state.tree[node] = left if state.event_ms[left] <= state.event_ms[right] else right
        node >>= 1


@_inlined
def set_free(state, rank, time):
    """Notes when a rank is expected to be free, and keeps the lenders sorted by (time, rank)."""
    place = state.place[rank]
    old = state.free_ms[rank]
    state.free_ms[rank] = time
    if time > old:
        last = len(state.by_free) - 1
        while place < last:
            other = state.by_free[place + 1]
            if time < state.free_ms[other] or (time == state.free_ms[other] and rank < other):
                break
            state.by_free[place] = other
            state.place[other] = place
            place += 1
    else:
        while place:
            other = state.by_free[place - 1]
            if state.free_ms[other] < time or (time == state.free_ms[other] and other < rank):
                break
            state.by_free[place] = other
            state.place[other] = place
            place -= 1
    state.by_free[place] = rank
    state.place[rank] = place


@_inlined
def fits(layout, state, rank, i):
    """Whether an action's memory is there, now and for all that it overtakes."""
    more = layout.allocated[i]
    if layout.static or more == 0.0:
        return True
    memory = state.memory[rank]
    if memory + more > layout.limits[rank]:
        return False
    if layout.looks_ahead[rank]:
        for k in range(state.cursor[rank], i):
            if state.status[k] == 0:
                memory += layout.allocated[k]
                if memory + more > layout.limits[rank]:
                    return False
                memory -= layout.freed[k]
    return True


@_inlined
def expected_start(layout, state, i, now):
    """When an action's inputs are expected to be there, as far as the present tells.

    An input that has not begun is expected when its rank has done all that stands before it.
    """
    ready = state.arrival_ms[i]
    for slot in range(layout.inputs.shape[1]):
        source = layout.inputs[i, slot]
        if source < 0:
            break
        if state.status[source] == 2:
            continue
        if state.status[source] == 1:
            end = max(state.expected_end_ms[source], now)
        else:
            rank = layout.ranks[source]
            head = layout.stream_actions[state.heads[layout.stream_of[source]]]
            end = (
                max(state.free_ms[rank], now)
                + (layout.work_before_ms[source] - layout.work_before_ms[head])
                + layout.duration_ms[source]
                + layout.send_ms[source]
            )
        ready = max(ready, end + layout.input_lag_ms[i, slot])
    return ready


@_inlined
def latest_return(layout, rules, state, rank, now, late_ms):
    """The latest time at which a lender must be back for its own next action.

    With slack it may be late: as long as its own action is less late than the borrower's
    (`late_ms`), both measured against the plan's latest starts.
    """
    latest = np.inf
    for stream in range(layout.rank_streams[rank], layout.rank_streams[rank + 1]):
        place = state.heads[stream]
        if place < layout.stream_offsets[stream + 1]:
            head = layout.stream_actions[place]
            if not fits(layout, state, rank, head):
                continue
            time = expected_start(layout, state, head, now)
            spare = late_ms - (time - rules.latest_start_ms[head])
            if spare > 0.0:
                time += rules.delay_share * spare
            latest = min(latest, time)
    return latest


@_inlined
def best_split(state, count, whole_ms, saved_ms, parts):
    """The exact split of one action between its rank and the lenders in `state.chosen[:count]`.

    Time is `max(whole - saved Q, offset_j + slope_j q_j)` with `Q` the sum of the lenders' parts. Parts
    are given one by one to the lender that would be back first, as long as that shortens the action.
    The start is the even split of the continuous problem, a little short of it.

    Returns:
        The time; the parts are in `state.given`.
    """
    # `level` is when all would end together, were parts divisible (or all parts were given away).
    level = whole_ms
    offsets, rate = 0.0, 0.0
    floor = -np.inf
    for _ in range(count):
        best = np.inf
        slot = -1
        for k in range(count):
            offset = state.offset_ms[state.chosen[k]]
            if floor < offset < best:
                best, slot = offset, k
        if slot < 0 or best >= level:
            break
        floor = best
        for k in range(count):
            if state.offset_ms[state.chosen[k]] == floor:
                slope = state.slope_ms[state.chosen[k]]
                offsets += floor / slope
                rate += 1.0 / slope
        level = min(
            (whole_ms / saved_ms + offsets) / (1.0 / saved_ms + rate), (parts + offsets) / rate
        )
    level -= 1e-6 * whole_ms
    total = 0
    for k in range(count):
        slot = state.chosen[k]
        given = 0
        if state.offset_ms[slot] < level:
            given = min(
                state.cap[slot], int((level - state.offset_ms[slot]) / state.slope_ms[slot])
            )
        state.given[k] = given
        total += given
    time = whole_ms - saved_ms * total
    while total < parts:
        back = np.inf
        taker = 0
        for k in range(count):
            slot = state.chosen[k]
            if state.given[k] < state.cap[slot]:
                later = state.offset_ms[slot] + state.slope_ms[slot] * (state.given[k] + 1)
                if later < back:
                    back, taker = later, k
        shorter = max(whole_ms - saved_ms * (total + 1), back)
        if shorter >= time:
            break
        time = shorter
        state.given[taker] += 1
        total += 1
    return time


@_inlined
def find_lenders(layout, costs, rules, state, rank, i, now, enough_ms, half_ms, parts, inside):
    """Ranks that could save time, those that are free first; returns how many.

    Of each, `state` gets when its first part would be back at best (`offset_ms`, after now), what a
    part adds (`slope_ms`) and the most parts it can do before its own next action (`cap`).
    """
    kind, stage = costs.kinds[i], costs.stages[i]
    share = costs.movable[i] / costs.parts
    latency, part_ms = costs.latency_ms, costs.part_ms
    late = now - rules.latest_start_ms[i]
    found = 0
    for place in range(len(state.by_free)):
        lender = state.by_free[place]
        if lender == rank or state.pending[lender] >= 0:
            continue
        running = state.action[lender]
        if inside and running >= 0 and state.status[running] == 1 and state.outstanding[running]:
            continue
        free = max(state.free_ms[lender] - now, 0.0)
        begin = max(free, half_ms)
        offset = begin + 2.0 * latency
        if free + 2.0 * latency > enough_ms or found == rules.max_candidates:
            break
        work = costs.lend_ms[kind, stage, lender] * share + part_ms
        if offset + work + part_ms > enough_ms:
            continue
        span = latest_return(layout, rules, state, lender, now, late) - now - begin - latency
        if span < work:
            continue
        state.candidates[found] = lender
        state.offset_ms[found] = offset
        state.slope_ms[found] = work + part_ms
        state.cap[found] = parts if span >= work * parts else int(span / work)
        found += 1
    return found


@_inlined
def decide(layout, costs, rules, state, rank, i, now, whole_ms, saved_ms, half_ms, parts, inside):
    """Chooses lenders for an action, or for what is left of it, one after another while it pays.

    Args:
        whole_ms: expected local time without help.
        saved_ms: expected local time of one part.
        half_ms: lenders start no earlier than this after now.
        parts: parts that can move.
        inside: the action runs already. Its rank may have promised help, so lenders that wait for
            parts of their own are no lenders now: ranks could wait for each other.

    Returns:
        expected local or remote time, whichever is longer, and the number of lenders; the lenders and
        their parts are in `state.choice`.
    """
    room = rules.max_lenders - state.lenders[i]
    best_ms = whole_ms
    count = 0
    if room <= 0 or parts <= 0 or saved_ms <= 0.0:
        return best_ms, count
    if rules.latest_start_ms[i] - now > rules.patience_ms:
        return best_ms, count
    least = rules.least_gain[i] * whole_ms
    found = find_lenders(
        layout, costs, rules, state, rank, i, now, whole_ms - least, half_ms, parts, inside
    )
    while count < room and count < found:
        enough = best_ms - least
        chosen = -1
        for slot in range(found):
            taken = False
            for k in range(count):
                if state.chosen[k] == slot:
                    taken = True
            if taken:
                continue
            state.chosen[count] = slot
            time = best_split(state, count + 1, whole_ms, saved_ms, parts)
            if time < best_ms and time <= enough and state.given[count]:
                best_ms, chosen = time, slot
                for k in range(count + 1):
                    state.choice[k, 0] = state.candidates[state.chosen[k]]
                    state.choice[k, 1] = state.given[k]
        if chosen < 0:
            break
        state.chosen[count] = chosen
        count += 1
    return best_ms, count


@_inlined
def lend(layout, costs, state, log, factors, now, rank, i, half_ms, expected_half_ms, chosen):
    """Promises the chosen helps. Returns the parts that move."""
    moved = 0
    for slot in range(chosen):
        lender, parts = state.choice[slot, 0], state.choice[slot, 1]
        entry = log.num_helps[0]
        log.num_helps[0] += 1
        log.help_action[entry] = i
        log.help_lender[entry] = lender
        log.help_parts[entry] = parts
        log.help_decided_ms[entry] = now
        log.help_ready_ms[entry] = now + half_ms
        log.help_expected_ready_ms[entry] = now + expected_half_ms
        moved += parts
        state.pending[lender] = entry
        set_free(state, lender, free_after(costs, log, entry, max(state.free_ms[lender], now)))
        if state.event[lender] == IDLE:
            begin_help(costs, state, log, factors, lender, now)
    state.outstanding[i] += chosen
    state.lenders[i] += chosen
    log.moved[i] += moved
    return moved


@_inlined
def free_after(costs, log, entry, now):
    """When a lender that is free at `now` is expected to have done a help."""
    i = log.help_action[entry]
    work = costs.lend_ms[costs.kinds[i], costs.stages[i], log.help_lender[entry]]
    return (
        max(now, log.help_expected_ready_ms[entry])
        + costs.latency_ms
        + (work * (costs.movable[i] / costs.parts) + costs.part_ms) * log.help_parts[entry]
    )


@_inlined
def begin_help(costs, state, log, factors, lender, now):
    """A rank that has come free begins the help it promised."""
    entry = state.pending[lender]
    state.pending[lender] = -1
    state.helping[lender] = entry
    i, parts = log.help_action[entry], log.help_parts[entry]
    kind, stage = costs.kinds[i], costs.stages[i]
    twin = costs.where[kind, costs.stand_in[stage, lender], costs.units[i]]
    factor = factors[twin if twin >= 0 else i]
    share = costs.movable[i] / costs.parts
    start = max(now, log.help_ready_ms[entry])
    log.help_start_ms[entry] = start
    end = (
        start
        + costs.latency_ms
        + (costs.lend_ms[kind, stage, lender] * factor * share + costs.part_ms) * parts
    )
    log.help_end_ms[entry] = end
    set_free(state, lender, free_after(costs, log, entry, now))
    set_event(state, lender, HELP, end)


@_inlined
def dispatch(layout, costs, state, log, factors, rank, now):
    """What a rank that has come free does next: a promised help, or its next action."""
    if state.pending[rank] >= 0:
        begin_help(costs, state, log, factors, rank, now)
    else:
        set_free(state, rank, now)
        set_event(state, rank, IDLE, next_start(layout, state, rank, now))


@_inlined
def next_start(layout, state, rank, now):
    """When a rank can start an action, and which (`state.action`); inf if that is not known yet."""
    best_ms = np.inf
    best = -1
    for stream in range(layout.rank_streams[rank], layout.rank_streams[rank + 1]):
        place = state.heads[stream]
        if place < layout.stream_offsets[stream + 1]:
            i = layout.stream_actions[place]
            if state.missing[i]:
                continue
            if not fits(layout, state, rank, i):
                continue
            time = max(now, state.arrival_ms[i])
            if time < best_ms or (time == best_ms and layout.priority[i] < layout.priority[best]):
                best_ms, best = time, i
    state.action[rank] = best
    return best_ms


@_inlined
def begin(layout, costs, rules, state, log, durations, factors, rank, now):
    """A rank starts its next action and decides who helps."""
    i = state.action[rank]
    state.heads[layout.stream_of[i]] += 1
    state.status[i] = 1
    if not layout.static:
        state.memory[rank] += layout.allocated[i]
        while (
            state.cursor[rank] < layout.rank_offsets[rank + 1]
            and state.status[state.cursor[rank]] != 0
        ):
            state.cursor[rank] += 1
    log.start_ms[i] = now
    movable = costs.movable[i]
    expected, real = layout.duration_ms[i], durations[i]
    local = real
    time = expected
    limit = min(rules.most_parts[i], costs.parts)
    state.block[rank] = 0
    state.expected_end_ms[i] = now + expected + layout.send_ms[i]
    if movable > 0.0 and limit > 0 and not rules.postpone:
        half = expected * (1.0 - movable) * 0.5
        saved = expected * movable / costs.parts
        time, chosen = decide(
            layout, costs, rules, state, rank, i, now, expected, saved, half, limit, False
        )
        if chosen:
            moved = lend(
                layout, costs, state, log, factors, now, rank, i,
                real * (1.0 - movable) * 0.5, half, chosen,
            )  # fmt: skip
            local = real * (1.0 - movable * moved / costs.parts)
            limit -= moved
    state.expected_end_ms[i] = now + time + layout.send_ms[i]
    set_free(state, rank, state.expected_end_ms[i])
    state.local_end_ms[i] = now + local
    news = abs(factors[i] - 1.0) > rules.surprise
    if rules.blocks > 1 and movable > 0.0 and (rules.postpone or rules.recheck or news):
        # Without news a boundary changes nothing, and is passed over.
        state.local_ms[rank] = local
        state.local_parts[rank] = limit
        set_event(state, rank, RUN, now + local / rules.blocks)
    elif state.outstanding[i] == 0:
        set_event(state, rank, END, now + local + layout.send_ms[i])
    else:
        set_event(state, rank, END, np.inf)


@_inlined
def boundary(layout, costs, rules, state, log, factors, rank, now):
    """A block has ended: its elapsed time tells how slow the action is, and lenders are asked again."""
    i = state.action[rank]
    blocks = rules.blocks - state.block[rank]
    state.block[rank] += 1
    # Elapsed over expected time is the same for every block of this action.
    slow = factors[i]
    movable = costs.movable[i]
    left = state.local_ms[rank] * (blocks - 1) / blocks
    parts = state.local_parts[rank] * (blocks - 1) // blocks
    saved = layout.duration_ms[i] * slow * movable / costs.parts
    half = max(log.start_ms[i] + layout.duration_ms[i] * slow * (1.0 - movable) * 0.5 - now, 0.0)
    time, chosen = decide(layout, costs, rules, state, rank, i, now, left, saved, half, parts, True)
    if chosen:
        moved = lend(layout, costs, state, log, factors, now, rank, i, half, half, chosen)
        left -= saved * moved
        parts -= moved
    state.local_ms[rank] = left
    state.local_parts[rank] = parts
    state.local_end_ms[i] = now + left
    state.expected_end_ms[i] = now + time + layout.send_ms[i]
    free = state.expected_end_ms[i]
    if state.pending[rank] >= 0:
        free = free_after(costs, log, state.pending[rank], free)
    set_free(state, rank, free)
    again = (rules.recheck or slow > 1.0 + rules.surprise) and blocks > 2 and parts > 0
    if again and state.lenders[i] < rules.max_lenders:
        set_event(state, rank, RUN, now + left / (blocks - 1))
    else:
        finish_local(layout, state, rank, i)


@_inlined
def finish_local(layout, state, rank, i):
    """The action's end is known once all its parts are back; until then it is not."""
    if state.outstanding[i] == 0:
        end = max(state.local_end_ms[i], state.back_ms[i]) + layout.send_ms[i]
        set_event(state, rank, END, end)
    else:
        set_event(state, rank, END, np.inf)


@_inlined
def finish_help(layout, costs, state, log, factors, lender, now):
    """A lender is done: the parts travel back, and it turns to what is next."""
    entry = state.helping[lender]
    i = log.help_action[entry]
    state.outstanding[i] -= 1
    back = now + costs.latency_ms + costs.part_ms * log.help_parts[entry]
    state.back_ms[i] = max(state.back_ms[i], back)
    rank = layout.ranks[i]
    if state.outstanding[i] == 0 and state.event[rank] == END:
        finish_local(layout, state, rank, i)
    dispatch(layout, costs, state, log, factors, lender, now)


@_inlined
def finish(layout, costs, state, log, factors, rank, now):
    """An action has ended: its outputs go out, idle ranks that waited for them get an event."""
    i = state.action[rank]
    state.status[i] = 2
    log.end_ms[i] = now
    state.memory[rank] -= layout.freed[i]
    for slot in range(layout.outputs.shape[1]):
        target = layout.outputs[i, slot]
        if target < 0:
            break
        state.missing[target] -= 1
        arrival = now + layout.output_lag_ms[i, slot]
        state.arrival_ms[target] = max(state.arrival_ms[target], arrival)
        other = layout.ranks[target]
        if other != rank and state.missing[target] == 0 and state.event[other] == IDLE:
            set_event(state, other, IDLE, next_start(layout, state, other, now))
    dispatch(layout, costs, state, log, factors, rank, now)


@_loop
def run(layout, costs, rules, state, log, durations, factors):
    """One step. Returns the makespan, or inf when ranks wait for each other for ever."""
    reset(layout, state, log)
    for rank in range(len(layout.rank_streams) - 1):
        dispatch(layout, costs, state, log, factors, rank, 0.0)
    ended = 0
    makespan = 0.0
    while True:
        rank = state.tree[1]
        now = state.event_ms[rank]
        if now == np.inf:
            break
        event = state.event[rank]
        if event == IDLE:
            begin(layout, costs, rules, state, log, durations, factors, rank, now)
        elif event == END:
            ended += 1
            makespan = now
            finish(layout, costs, state, log, factors, rank, now)
        elif event == HELP:
            finish_help(layout, costs, state, log, factors, rank, now)
        else:
            boundary(layout, costs, rules, state, log, factors, rank, now)
    return makespan if ended == len(layout.ranks) else np.inf


@numba.njit(cache=True)
def run_draws(layout, costs, rules, durations, factors, moved, work):
    """Many steps; fills `moved` with (parts moved, helps) and `work` with the expected work moved of
    each draw. Returns makespans."""
    draws, n = durations.shape
    state = make_state(n, len(layout.rank_streams) - 1, len(layout.stream_offsets) - 1)
    log = make_log(n)
    makespans = np.empty(draws)
    for draw in range(draws):
        makespans[draw] = run(layout, costs, rules, state, log, durations[draw], factors[draw])
        work[draw] = 0.0
        for i in range(n):
            moved[draw, 0] += log.moved[i]
            share = costs.movable[i] / costs.parts
            work[draw] += layout.duration_ms[i] * share * log.moved[i]
        moved[draw, 1] = log.num_helps[0]
    return makespans


@numba.njit(cache=True)
def latest_starts(layout, costs, log, makespan, by_start):
    """Latest start of every action, with the same order and the same helps, that keeps the makespan.

    Args:
        by_start: items by start, last first; item `n + h` is help `h`.
    """
    n = len(layout.ranks)
    num_ranks = len(layout.rank_streams) - 1
    latest = np.empty(n)
    ends = np.full(n, np.inf)
    next_on_rank = np.full(num_ranks, makespan)
    help_bound = np.full(n, np.inf)
    bound_set = np.zeros(n, np.bool_)
    for item in by_start:
        help_entry = item - n
        i = log.help_action[help_entry] if help_entry >= 0 else item
        if not bound_set[i]:
            # Everything after the action's end has been seen; nothing else of its rank has.
            bound_set[i] = True
            ends[i] = next_on_rank[layout.ranks[i]]
            for slot in range(layout.outputs.shape[1]):
                target = layout.outputs[i, slot]
                if target < 0:
                    break
                ends[i] = min(ends[i], latest[target] - layout.output_lag_ms[i, slot])
        if help_entry >= 0:
            lender = log.help_lender[help_entry]
            back = costs.latency_ms + costs.part_ms * log.help_parts[help_entry]
            end = min(next_on_rank[lender], ends[i] - layout.send_ms[i] - back)
            start = end - (log.help_end_ms[help_entry] - log.help_start_ms[help_entry])
            next_on_rank[lender] = start
            half = log.help_ready_ms[help_entry] - log.start_ms[i]
            help_bound[i] = min(help_bound[i], start - half)
        else:
            local = layout.duration_ms[i] * (1.0 - costs.movable[i] * log.moved[i] / costs.parts)
            latest[i] = min(ends[i] - layout.send_ms[i] - local, help_bound[i])
            next_on_rank[layout.ranks[i]] = latest[i]
    return latest
