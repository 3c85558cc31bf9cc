"""Compiled event loop of the learned lending tier: the migration planner's, with a mind of its own.

Beside the planner's rules it has three things to decide with, and each can be left out, which gives back the
planner's loop float for float (`conductor.migration.kernels`): what actions will take, told from what has
ended; a price of each lender, from a small network; when to leave the order of the plan.

`desk` is the policy of both tiers at work, or None: the branches on that are decided when the loop is compiled,
so that without a policy it has none of the policy's hundred arrays.

Realised durations are read only to advance the clock and once an action has ended (or, as the planner's rules
do, at its first block boundary). What a rank needs to know of others is what messages carry: how long the
micro-batch took on other ranks, and what the rules already ask of lenders.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from conductor.migration.kernels import (
    END,
    HELP,
    IDLE,
    RUN,
    Rules,
    best_split,
    finish_local,
    fits,
    make_log,
    make_state,
    reset,
    set_event,
    set_free,
)
from conductor.rl.two_tier.policy.kernels import (
    EIGHTHS,
    MAX_OPTIONS,
    begin_step,
    choose_option,
    look,
    make_desk,
    next_action,
    note_end,
)

NUM_CLUES = 8
"""What a guess of realised over expected time is made of."""
NUM_FEATURES = 12
"""What the price of a lender is made of."""

_UNCOUNTED: dict[str, Any] = {
    "cache": True, "error_model": "numpy", "nogil": True, "_nrt": False
}  # fmt: skip
_inlined = numba.njit(forceinline=True, **_UNCOUNTED)
_called = numba.njit(**_UNCOUNTED)
"""Only for what runs once a step or so: a call passes every array of its arguments."""
_SMOOTHING = 0.3
_LATE = 0.5
"""A message that takes half a mean action longer than planned says that its link is late."""
_OVERDUE = 3.0
"""A rank whose next action is so many mean actions later than it was expected at first waits no longer."""


class Mind(NamedTuple):
    """What the tier has learned."""

    guesses: bool
    """Whether the three guesses count; without them everything takes its expected time."""
    near: np.ndarray
    """float64 (NUM_CLUES,): weights of a guess of the action that a rank begins."""
    far: np.ndarray
    """Of actions that stand behind others."""
    lent: np.ndarray
    """Of parts at a lender."""
    scores: bool
    """Whether the network counts."""
    first: np.ndarray
    """float64 (NUM_FEATURES, hidden)."""
    first_bias: np.ndarray
    last: np.ndarray
    """float64 (hidden,)."""
    last_bias: float
    patience: float
    """With ready-first execution: an action may overtake the plan's next one where that is expected to be
    so many times its duration away; below 0 whatever is ready goes."""
    unit_ms: float
    """Mean expected time of an action."""
    input_lag_ms: np.ndarray
    """As of `Layout`, as planned: what ranks expect that have heard of no late link."""
    output_lag_ms: np.ndarray
    warned: bool
    """Whether a rank that has heard of a late link lends by rules of its own and the network."""
    warned_rules: Rules


class Memory(NamedTuple):
    """What has been seen in this step, and scratch."""

    excess: np.ndarray
    """float64 (units,): sum of realised over expected time less 1, of a micro-batch's ended actions."""
    told: np.ndarray
    """float64 (units,): how many that are."""
    latest: np.ndarray
    """float64 (ranks,): the same of the rank's last action beyond its micro-batch's mean."""
    smooth: np.ndarray
    """That, smoothed."""
    clues: np.ndarray
    features: np.ndarray
    work_ms: np.ndarray
    """float64 (helps,): a part's guessed time at the lender."""
    part_ms: np.ndarray
    """float64 (ranks,): of the candidates."""
    bonus_ms: np.ndarray
    """float64 (ranks,): what the network thinks each candidate is worth beyond the time it saves."""
    late_ms: np.ndarray
    """float64 (1,): how late the lender just looked at is expected to be for its own next action."""
    ended: np.ndarray
    """int64 (1,): actions that have ended."""
    clock_ms: np.ndarray
    """float64 (2,): when the last of them did, and when anything last happened."""
    warned_ms: np.ndarray
    """float64 (ranks,): when the first message came, or comes, that was late or tells of a late link."""
    hope_ms: np.ndarray
    """float64 (ranks,): when the plan's next action was expected at the earliest."""
    about_ms: np.ndarray
    """float64 (ranks, 3): of the candidates, when each is free, how late it is for its own next action, and
    the time until it must be back."""
    cap: np.ndarray
    """int32 (ranks,): parts that the candidates could do."""
    alone: np.ndarray
    """int32 (ranks,): parts that each candidate would do if it were the only one."""
    alone_ms: np.ndarray
    """float64 (ranks,): how long the action would take then."""


@numba.njit(cache=True, nogil=True)
def make_memory(num_units, num_ranks, num_actions):
    """Buffers of `run`."""
    return Memory(
        np.zeros(num_units), np.zeros(num_units), np.zeros(num_ranks), np.zeros(num_ranks),
        np.zeros(NUM_CLUES), np.zeros(NUM_FEATURES), np.zeros(4 * num_actions),
        np.zeros(num_ranks), np.zeros(num_ranks), np.zeros(1), np.zeros(1, np.int64), np.zeros(2),
        np.zeros(num_ranks), np.zeros(num_ranks), np.zeros((num_ranks, 3)),
        np.zeros(num_ranks, np.int32),
        np.zeros(num_ranks, np.int32), np.zeros(num_ranks),
    )  # fmt: skip


@_inlined
def forget(memory):
    """Before the first action."""
    memory.excess[:] = 0.0
    memory.told[:] = 0.0
    memory.latest[:] = 0.0
    memory.smooth[:] = 0.0
    memory.ended[0] = 0
    memory.clock_ms[:] = 0.0
    memory.warned_ms[:] = np.inf
    memory.hope_ms[:] = np.inf


@_inlined
def remember(layout, costs, memory, factors, rank, i):
    """An action has ended: its pace is known."""
    memory.ended[0] += 1
    if layout.duration_ms[i] == 0.0:
        return
    unit = costs.units[i]
    count = memory.told[unit]
    usual = 1.0 + memory.excess[unit] / max(count, 1.0)
    beyond = factors[i] / max(usual, 0.05) - 1.0
    memory.latest[rank] = beyond
    memory.smooth[rank] += _SMOOTHING * (beyond - memory.smooth[rank])
    memory.excess[unit] += factors[i] - 1.0
    memory.told[unit] = count + 1.0


@_inlined
def note_clues(costs, state, memory, factors, rank, i, twin, seen):
    """Fills `memory.clues`: of action i on its own rank (twin -1), or parts of it at a lender.

    `twin` is the lender's own action of that kind and micro-batch; `seen` is the action's pace less 1 where
    its rank knows it already, else 0.
    """
    unit = costs.units[i]
    excess, count = memory.excess[unit], memory.told[unit]
    own, known = 0.0, 0.0
    if twin >= 0 and state.status[twin] == 2:
        own, known = factors[twin] - 1.0, 1.0
        excess -= own
        count -= 1.0
    if seen != 0.0:
        excess += seen
        count += 1.0
    clues = memory.clues
    mean = excess / max(count, 1.0)
    clues[0] = 1.0
    clues[1] = mean
    clues[2] = mean / max(count, 1.0)
    clues[3] = 1.0 if count > 0.0 else 0.0
    clues[4] = memory.latest[rank]
    clues[5] = memory.smooth[rank]
    clues[6] = own
    clues[7] = known


@_inlined
def weigh(memory, weights):
    """A guess of realised over expected time."""
    guess = 0.0
    for k in range(NUM_CLUES):
        guess += weights[k] * memory.clues[k]
    return min(max(guess, 0.25), 8.0)


@_inlined
def guess_own(costs, mind, state, memory, factors, i, rank, weights):
    """Realised over expected time of an action that its own rank has not ended."""
    if not mind.guesses:
        return 1.0
    note_clues(costs, state, memory, factors, rank, i, -1, 0.0)
    return weigh(memory, weights)


@_inlined
def guess_lent(costs, mind, state, memory, factors, i, lender, seen):
    """The same of parts of action i at a lender."""
    if not mind.guesses:
        return 1.0
    twin = costs.where[costs.kinds[i], costs.stand_in[costs.stages[i], lender], costs.units[i]]
    note_clues(costs, state, memory, factors, lender, i, twin, seen)
    return weigh(memory, mind.lent)


@_inlined
def orders(desk):
    """Whether a policy says what ranks do next."""
    if desk is None:
        return False
    return desk.policy.orders


@_inlined
def lends(desk):
    """Whether a policy picks lenders."""
    if desk is None:
        return False
    return desk.policy.lends


@_inlined
def planned(layout, state, rank):
    """The action of a rank that the plan has next, or -1."""
    best = -1
    for stream in range(layout.rank_streams[rank], layout.rank_streams[rank + 1]):
        place = state.heads[stream]
        if place < layout.stream_offsets[stream + 1]:
            i = layout.stream_actions[place]
            if best < 0 or layout.priority[i] < layout.priority[best]:
                best = i
    return best


@_inlined
def expected_start(layout, costs, mind, state, memory, factors, i, now):
    """When an action's inputs are expected to be there, as `conductor.migration.kernels` has it, with
    guesses in the place of expected times."""
    ready = 0.0
    lags = layout.input_lag_ms
    if memory.warned_ms[layout.ranks[i]] > now:
        lags = mind.input_lag_ms
    for slot in range(layout.inputs.shape[1]):
        source = layout.inputs[i, slot]
        if source < 0:
            break
        if state.status[source] == 2:
            # A message under way is expected as planned, at any moment once it is overdue.
            come = state.expected_end_ms[source] + layout.input_lag_ms[i, slot]
            if come > now:
                come = max(state.expected_end_ms[source] + lags[i, slot], now)
            ready = max(ready, come)
            continue
        if state.status[source] == 1:
            end = max(state.expected_end_ms[source], now)
        else:
            rank = layout.ranks[source]
            head = layout.stream_actions[state.heads[layout.stream_of[source]]]
            end = max(state.free_ms[rank], now)
            if mind.guesses:
                for k in range(head, source + 1):
                    if state.status[k] == 0:
                        guess = guess_own(costs, mind, state, memory, factors, k, rank, mind.far)
                        end += layout.duration_ms[k] * guess + layout.send_ms[k]
            else:
                end = (
                    end
                    + (layout.work_before_ms[source] - layout.work_before_ms[head])
                    + layout.duration_ms[source]
                    + layout.send_ms[source]
                )
        ready = max(ready, end + lags[i, slot])
    return ready


@_inlined
def latest_return(layout, costs, rules, mind, desk, state, memory, factors, rank, now, late_ms):
    """The latest time at which a lender must be back for its own next action: for any that it could take, or,
    where it keeps to the plan as a rule, for the plan's next one."""
    latest = np.inf
    memory.late_ms[0] = -np.inf
    only = -1
    if orders(desk) or mind.patience >= 0.0:
        if not layout.static and memory.warned_ms[rank] > now:
            only = planned(layout, state, rank)
    for stream in range(layout.rank_streams[rank], layout.rank_streams[rank + 1]):
        place = state.heads[stream]
        if place < layout.stream_offsets[stream + 1]:
            head = layout.stream_actions[place]
            if only >= 0:
                if head != only:
                    continue
            elif not fits(layout, state, rank, head):
                continue
            time = expected_start(layout, costs, mind, state, memory, factors, head, now)
            late = time - rules.latest_start_ms[head]
            spare = late_ms - late
            if spare > 0.0:
                time += rules.delay_share * spare
            if time < latest:
                latest = time
                memory.late_ms[0] = late
    return latest


@_inlined
def find_lenders(
    layout, costs, rules, mind, desk, state, memory, factors, rank, i, now, whole_ms, enough_ms, saved_ms,
    half_ms, parts, inside, seen,
):  # fmt: skip
    """Ranks that could save time, those that are free first; returns how many."""
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
        guess = guess_lent(costs, mind, state, memory, factors, i, lender, seen)
        work = costs.lend_ms[kind, stage, lender] * guess * share + part_ms
        if offset + work + part_ms > enough_ms:
            continue
        back = latest_return(
            layout, costs, rules, mind, desk, state, memory, factors, lender, now, late
        )
        span = back - now - begin - latency
        if span < work:
            continue
        state.candidates[found] = lender
        state.offset_ms[found] = offset
        state.slope_ms[found] = work + part_ms
        state.cap[found] = parts if span >= work * parts else int(span / work)
        memory.cap[found] = state.cap[found]
        memory.about_ms[found, 0] = free
        memory.about_ms[found, 1] = memory.late_ms[0]
        memory.about_ms[found, 2] = span
        memory.part_ms[found] = work
        memory.bonus_ms[found] = 0.0
        if lends(desk):
            state.chosen[0] = found
            memory.alone_ms[found] = best_split(state, 1, whole_ms, saved_ms, parts)
            memory.alone[found] = state.given[0]
        elif mind.scores or (mind.warned and memory.warned_ms[rank] <= now):
            state.chosen[0] = found
            time = best_split(state, 1, whole_ms, saved_ms, parts)
            busy = work * state.given[0]
            unit = mind.unit_ms
            x = memory.features
            x[0] = squashed(late / unit)
            x[1] = squashed((late - memory.late_ms[0]) / unit)
            x[2] = squashed(free / unit)
            x[3] = squashed((span - busy) / unit)
            x[4] = 1.0 - time / whole_ms
            x[5] = busy / unit
            x[6] = state.given[0] / costs.parts
            x[7] = 1.0 if inside else 0.0
            x[8] = whole_ms / unit
            x[9] = state.lenders[i]
            x[10] = memory.ended[0] / len(layout.ranks)
            x[11] = memory.smooth[lender] - memory.smooth[rank]
            memory.bonus_ms[found] = unit * network(mind, x)
        found += 1
    return found


@_inlined
def squashed(x):
    """A ratio on a logarithmic scale, odd and monotone; a lender with nothing left to do has infinite slack,
    which counts as a hundred."""
    size = np.log1p(min(abs(x), 100.0))
    return size if x >= 0.0 else -size


@_inlined
def network(mind, x):
    """One hidden layer of ReLU."""
    total = mind.last_bias
    for j in range(len(mind.last)):
        value = mind.first_bias[j]
        for k in range(NUM_FEATURES):
            value += x[k] * mind.first[k, j]
        if value > 0.0:
            total += value * mind.last[j]
    return total


@_inlined
def decide(
    layout, costs, rules, mind, desk, state, memory, factors, rank, i, now, whole_ms, saved_ms, half_ms, parts,
    inside, seen,
):  # fmt: skip
    """Chooses lenders one after another while it pays, as `conductor.migration.kernels` does; what it pays
    is the time saved and what the network adds, or what the policy says."""
    room = rules.max_lenders - state.lenders[i]
    best_ms = whole_ms
    count = 0
    if room <= 0 or parts <= 0 or saved_ms <= 0.0:
        return best_ms, count
    if rules.latest_start_ms[i] - now > rules.patience_ms:
        return best_ms, count
    least = rules.least_gain[i] * whole_ms
    found = find_lenders(
        layout, costs, rules, mind, desk, state, memory, factors, rank, i, now, whole_ms, whole_ms - least,
        saved_ms, half_ms, parts, inside, seen,
    )  # fmt: skip
    if desk is not None:
        if desk.policy.lends:
            return choose_by_policy(
                layout, costs, rules, mind, desk, state, memory, rank, i, now, whole_ms, saved_ms, parts,
                inside, seen, least, found, room,
            )  # fmt: skip
    best_value = whole_ms
    bonus = 0.0
    while count < room and count < found:
        enough = best_value - least
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
            value = time - bonus - memory.bonus_ms[slot]
            if value < best_value and value <= enough and state.given[count]:
                best_ms, best_value, chosen = time, value, slot
                for k in range(count + 1):
                    state.choice[k, 0] = state.candidates[state.chosen[k]]
                    state.choice[k, 1] = state.given[k]
        if chosen < 0:
            break
        state.chosen[count] = chosen
        bonus += memory.bonus_ms[chosen]
        count += 1
    return best_ms, count


@_inlined
def choose_by_policy(
    layout, costs, rules, mind, desk, state, memory, rank, i, now, whole_ms, saved_ms, parts, inside, seen,
    least, found, room,
):  # fmt: skip
    """Of the lenders found, the policy's: each may be asked for all that it can do, or for some eighths."""
    unit = mind.unit_ms
    best_ms = whole_ms
    count = 0
    if found:
        look(desk, rank, i, now)
    late = now - rules.latest_start_ms[i]
    eighth = -(-costs.parts // EIGHTHS)
    while count < room and count < found:
        options = 1
        desk.scores[0] = 0.0
        desk.time_ms[0] = best_ms
        for f in range(len(desk.options[0])):
            desk.options[0, f] = 0.0
        for slot in range(found):
            taken = False
            for k in range(count):
                if state.chosen[k] == slot:
                    taken = True
            if taken:
                continue
            state.chosen[count] = slot
            most = np.int64(memory.cap[slot])
            cap = most
            while cap > 0 and options < MAX_OPTIONS:
                state.cap[slot] = cap
                time = best_split(state, count + 1, whole_ms, saved_ms, parts)
                given = np.int64(state.given[count])
                if given and time < best_ms:
                    gain = best_ms - time
                    # As if it were the only lender; fewer parts than are best leave their time.
                    alone = np.int64(min(memory.alone[slot], cap))
                    alone_ms = memory.alone_ms[slot]
                    if alone < memory.alone[slot]:
                        alone_ms = whole_ms - saved_ms * alone
                    busy = memory.part_ms[slot] * alone
                    x = desk.options[options]
                    x[0] = squashed(late / unit)
                    x[1] = squashed((late - memory.about_ms[slot, 1]) / unit)
                    x[2] = squashed(memory.about_ms[slot, 0] / unit)
                    x[3] = squashed((memory.about_ms[slot, 2] - busy) / unit)
                    x[4] = 1.0 - alone_ms / whole_ms
                    x[5] = busy / unit
                    x[6] = alone / costs.parts
                    x[7] = 1.0 if inside else 0.0
                    x[8] = whole_ms / unit
                    x[9] = state.lenders[i]
                    x[10] = memory.ended[0] / len(layout.ranks)
                    x[11] = memory.smooth[state.candidates[slot]] - memory.smooth[rank]
                    x[12] = gain / unit
                    x[13] = 1.0 if cap < most else 0.0
                    x[14] = squashed(seen)
                    x[15] = count
                    # In this order of operations the rule's `time <= enough` to the last bit.
                    desk.scores[options] = desk.policy.lean * (best_ms - least - time) / unit
                    desk.time_ms[options] = time
                    desk.slot[options] = slot
                    desk.cap[options] = cap
                    options += 1
                cap = (np.int64(given) - 1) // eighth * eighth if given else np.int64(0)
            state.cap[slot] = most
        if options == 1:
            break
        option = choose_option(desk, options)
        if option == 0:
            break
        state.chosen[count] = desk.slot[option]
        state.cap[desk.slot[option]] = desk.cap[option]
        best_ms = best_split(state, count + 1, whole_ms, saved_ms, parts)
        count += 1
        for k in range(count):
            state.choice[k, 0] = state.candidates[state.chosen[k]]
            state.choice[k, 1] = state.given[k]
    return best_ms, count


@_inlined
def lend(
    layout,
    costs,
    mind,
    state,
    memory,
    log,
    factors,
    now,
    rank,
    i,
    half_ms,
    expected_half_ms,
    chosen,
):
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
        memory.work_ms[entry] = memory.part_ms[state.chosen[slot]]
        moved += parts
        state.pending[lender] = entry
        free = free_after(costs, memory, log, entry, max(state.free_ms[lender], now))
        set_free(state, lender, free)
        if state.event[lender] == IDLE:
            begin_help(costs, state, memory, log, factors, lender, now)
    state.outstanding[i] += chosen
    state.lenders[i] += chosen
    log.moved[i] += moved
    return moved


@_inlined
def free_after(costs, memory, log, entry, now):
    """When a lender that is free at `now` is expected to have done a help."""
    begin = max(now, log.help_expected_ready_ms[entry])
    return begin + costs.latency_ms + memory.work_ms[entry] * log.help_parts[entry]


@_inlined
def begin_help(costs, state, memory, log, factors, lender, now):
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
    set_free(state, lender, free_after(costs, memory, log, entry, now))
    set_event(state, lender, HELP, end)


@_inlined
def dispatch(layout, costs, mind, desk, state, memory, log, factors, rank, now):
    """What a rank that has come free does next: a promised help, or its next action."""
    if state.pending[rank] >= 0:
        begin_help(costs, state, memory, log, factors, rank, now)
    else:
        set_free(state, rank, now)
        time = next_start(layout, costs, mind, desk, state, memory, factors, rank, now)
        set_event(state, rank, IDLE, time)


@_inlined
def next_start(layout, costs, mind, desk, state, memory, factors, rank, now):
    """When a rank can start an action, and which (`state.action`); inf if that is not known yet. Where the
    policy says what is next, it is asked when there may be something, with `state.action` -1."""
    if desk is not None:
        if desk.policy.orders and not layout.static and memory.warned_ms[rank] > now:
            state.action[rank] = -1
            return max(desk.s.wake[rank], now)
    return start_by_rule(layout, costs, mind, state, memory, factors, rank, now)


@_inlined
def start_by_rule(layout, costs, mind, state, memory, factors, rank, now):
    """The same without a policy.

    A patient rank whose plan's next action is overdue looks again a little later (with `state.action` -1), a
    few times: ranks that wait for each other must not do so for ever. A rank that knows of a late link, of
    which no plan knew, takes whatever is ready.
    """
    patient = mind.patience >= 0.0 and not layout.static and memory.warned_ms[rank] > now
    until, again = np.inf, np.inf
    plan = -1
    if patient:
        plan = planned(layout, state, rank)
        if plan >= 0 and fits(layout, state, rank, plan):
            until = expected_start(layout, costs, mind, state, memory, factors, plan, now)
            until = max(until, now)
            memory.hope_ms[rank] = min(memory.hope_ms[rank], until)
            patient = now <= memory.hope_ms[rank] + _OVERDUE * mind.unit_ms
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
            if patient and i != plan and time + mind.patience * layout.duration_ms[i] > until:
                again = until + 0.25 * mind.unit_ms
                continue
            if time < best_ms or (time == best_ms and layout.priority[i] < layout.priority[best]):
                best_ms, best = time, i
    state.action[rank] = best
    return best_ms if best >= 0 else again


@_inlined
def rules_of(rules, mind, memory, log, rank, i):
    """The rules that an action is done under."""
    if mind.warned and memory.warned_ms[rank] <= log.start_ms[i]:
        return mind.warned_rules
    return rules


@_inlined
def begin(layout, costs, rules, mind, desk, state, memory, log, durations, factors, rank, now):
    """A rank starts its next action and decides who helps."""
    i = np.int64(state.action[rank])
    guess = guess_own(costs, mind, state, memory, factors, i, rank, mind.near)
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
    memory.hope_ms[rank] = np.inf
    rules = rules_of(rules, mind, memory, log, rank, i)
    movable = costs.movable[i]
    expected, real = layout.duration_ms[i] * guess, durations[i]
    local = real
    time = expected
    limit = np.int64(min(rules.most_parts[i], costs.parts))
    state.block[rank] = 0
    state.expected_end_ms[i] = now + expected + layout.send_ms[i]
    if movable > 0.0 and limit > 0 and not rules.postpone:
        half = expected * (1.0 - movable) * 0.5
        saved = expected * movable / costs.parts
        time, chosen = decide(
            layout, costs, rules, mind, desk, state, memory, factors, rank, i, now, expected, saved, half,
            limit, state.block[rank] > 0, 0.0,
        )  # fmt: skip
        if chosen:
            moved = lend(
                layout, costs, mind, state, memory, log, factors, now, rank, i,
                real * (1.0 - movable) * 0.5, half, chosen,
            )  # fmt: skip
            local = real * (1.0 - movable * moved / costs.parts)
            limit -= moved
    state.expected_end_ms[i] = now + time + layout.send_ms[i]
    set_free(state, rank, state.expected_end_ms[i])
    state.local_end_ms[i] = now + local
    news = abs(factors[i] - guess) > rules.surprise
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
def boundary(layout, costs, rules, mind, desk, state, memory, log, factors, rank, now):
    """A block has ended: its elapsed time tells how slow the action is, and lenders are asked again."""
    i = np.int64(state.action[rank])
    rules = rules_of(rules, mind, memory, log, rank, i)
    blocks = rules.blocks - state.block[rank]
    state.block[rank] += 1
    # Elapsed over expected time is the same for every block of this action.
    slow = factors[i]
    movable = costs.movable[i]
    left = state.local_ms[rank] * (blocks - 1) / blocks
    parts = np.int64(state.local_parts[rank]) * (blocks - 1) // blocks
    saved = layout.duration_ms[i] * slow * movable / costs.parts
    half = max(log.start_ms[i] + layout.duration_ms[i] * slow * (1.0 - movable) * 0.5 - now, 0.0)
    time, chosen = decide(
        layout, costs, rules, mind, desk, state, memory, factors, rank, i, now, left, saved, half, parts,
        state.block[rank] > 0, slow - 1.0,
    )  # fmt: skip
    if chosen:
        moved = lend(
            layout, costs, mind, state, memory, log, factors, now, rank, i, half, half, chosen
        )
        left -= saved * moved
        parts -= moved
    state.local_ms[rank] = left
    state.local_parts[rank] = parts
    state.local_end_ms[i] = now + left
    state.expected_end_ms[i] = now + time + layout.send_ms[i]
    free = state.expected_end_ms[i]
    if state.pending[rank] >= 0:
        free = free_after(costs, memory, log, state.pending[rank], free)
    set_free(state, rank, free)
    again = (rules.recheck or slow > 1.0 + rules.surprise) and blocks > 2 and parts > 0
    if again and state.lenders[i] < rules.max_lenders:
        set_event(state, rank, RUN, now + left / (blocks - 1))
    else:
        finish_local(layout, state, rank, i)


@_inlined
def finish_help(layout, costs, state, log, lender, now):
    """A lender is done: the parts travel back."""
    entry = state.helping[lender]
    i = log.help_action[entry]
    state.outstanding[i] -= 1
    back = now + costs.latency_ms + costs.part_ms * log.help_parts[entry]
    state.back_ms[i] = max(state.back_ms[i], back)
    rank = layout.ranks[i]
    if state.outstanding[i] == 0 and state.event[rank] == END:
        finish_local(layout, state, rank, i)


@_inlined
def finish(layout, costs, mind, desk, state, memory, log, factors, rank, now):
    """An action has ended: its outputs go out, idle ranks that waited for them get an event."""
    i = np.int64(state.action[rank])
    state.status[i] = 2
    state.expected_end_ms[i] = now
    remember(layout, costs, memory, factors, rank, i)
    if desk is not None:
        note_end(desk, rank, i, now, factors[i])
    log.end_ms[i] = now
    memory.clock_ms[0] = now
    state.memory[rank] -= layout.freed[i]
    for slot in range(layout.outputs.shape[1]):
        target = layout.outputs[i, slot]
        if target < 0:
            break
        state.missing[target] -= 1
        arrival = now + layout.output_lag_ms[i, slot]
        state.arrival_ms[target] = max(state.arrival_ms[target], arrival)
        other = np.int64(layout.ranks[target])
        beyond = layout.output_lag_ms[i, slot] - mind.output_lag_ms[i, slot]
        if memory.warned_ms[rank] <= now or beyond > _LATE * mind.unit_ms:
            memory.warned_ms[other] = min(memory.warned_ms[other], arrival)
        if other != rank and state.missing[target] == 0 and state.event[other] == IDLE:
            time = next_start(layout, costs, mind, desk, state, memory, factors, other, now)
            set_event(state, other, IDLE, time)


@_called
def begin_run(layout, costs, mind, desk, state, memory, log, factors):
    """Before the first event."""
    reset(layout, state, log)
    forget(memory)
    if desk is not None:
        begin_step(desk)
    for rank in range(len(layout.rank_streams) - 1):
        dispatch(layout, costs, mind, desk, state, memory, log, factors, rank, 0.0)


@_inlined
def first_declined(desk):
    """The first rank that has chosen to wait, or -1."""
    if desk is not None:
        for rank in range(len(desk.policy.p.limits)):
            if desk.policy.orders and desk.s.declined[rank]:
                return np.int64(rank)
    return np.int64(-1)


@_inlined
def ask_policy(layout, costs, mind, desk, state, memory, factors, rank, now, stalled):
    """Asks the policy for a rank's next action (`state.action`). Returns whether there is one."""
    if desk is None:
        return False
    again = np.inf
    lead = np.int64(-1)
    if mind.patience >= 0.0:
        again = start_by_rule(layout, costs, mind, state, memory, factors, rank, now)
        if again <= now:
            lead = np.int64(state.action[rank])
            again = np.inf
    i = next_action(desk, rank, now, stalled, mind.patience >= 0.0, lead)
    state.action[rank] = i
    if i < 0:
        set_event(state, rank, IDLE, min(desk.s.wake[rank], again))
    return i >= 0


@_inlined
def advance(layout, costs, rules, mind, desk, state, memory, log, durations, factors):
    """Handles the next event. Returns whether there was one."""
    rank = np.int64(state.tree[1])
    now = state.event_ms[rank]
    stalled = now == np.inf
    if stalled:
        # All wait: the first rank that has chosen to is asked again, and may not.
        rank = first_declined(desk)
        if rank < 0 or memory.ended[0] == len(layout.ranks):
            return False
        now = memory.clock_ms[1]
    memory.clock_ms[1] = now
    event = state.event[rank]
    asked = event == IDLE and state.action[rank] < 0
    if asked and orders(desk) and memory.warned_ms[rank] > now:
        if not ask_policy(layout, costs, mind, desk, state, memory, factors, rank, now, stalled):
            return not stalled or state.event_ms[rank] < np.inf
        asked = False
    if event == RUN:
        boundary(layout, costs, rules, mind, desk, state, memory, log, factors, rank, now)
    elif event == IDLE and not asked:
        begin(layout, costs, rules, mind, desk, state, memory, log, durations, factors, rank, now)
    else:
        if event == END:
            finish(layout, costs, mind, desk, state, memory, log, factors, rank, now)
        elif event == HELP:
            finish_help(layout, costs, state, log, rank, now)
        dispatch(layout, costs, mind, desk, state, memory, log, factors, rank, now)
    return not (asked and stalled) or state.event_ms[rank] < np.inf


@_called
def run_on(layout, costs, rules, mind, desk, state, memory, log, durations, factors):
    """The rest of a step. Returns the makespan, or inf when ranks wait for each other for ever."""
    while advance(layout, costs, rules, mind, desk, state, memory, log, durations, factors):
        pass
    return memory.clock_ms[0] if memory.ended[0] == len(layout.ranks) else np.inf


@_inlined
def run(layout, costs, rules, mind, desk, state, memory, log, durations, factors):
    """One step. Returns the makespan, or inf when ranks wait for each other for ever."""
    begin_run(layout, costs, mind, desk, state, memory, log, factors)
    return run_on(layout, costs, rules, mind, desk, state, memory, log, durations, factors)


@numba.njit(cache=True, nogil=True)
def run_draws(layout, costs, rules, mind, policy, durations, factors, moved, work):
    """Many steps; fills `moved` and `work` as `conductor.migration.kernels.run_draws` does. Returns
    makespans. Without a policy (None) nothing of it is compiled."""
    draws, n = durations.shape
    num_ranks = len(layout.rank_streams) - 1
    state = make_state(n, num_ranks, len(layout.stream_offsets) - 1)
    memory = make_memory(costs.where.shape[2], num_ranks, n)
    desk = None if policy is None else make_desk(policy)
    log = make_log(n)
    makespans = np.empty(draws)
    for draw in range(draws):
        makespans[draw] = run(
            layout, costs, rules, mind, desk, state, memory, log, durations[draw], factors[draw]
        )
        work[draw] = 0.0
        for i in range(n):
            moved[draw, 0] += log.moved[i]
            share = costs.movable[i] / costs.parts
            work[draw] += layout.duration_ms[i] * share * log.moved[i]
        moved[draw, 1] = log.num_helps[0]
    return makespans


@numba.njit(cache=True, nogil=True)
def gather_clues(layout, costs, state, memory, factors, order, ahead, seen, rows, targets):
    """Clues and truths of one step that has run, three rows for each action that can move: of itself when
    it starts, of the action `ahead` places on, and of its parts at some other rank. Returns the rows.

    Args:
        order: items by time; i is the start of action i, n + i its end.
        seen: whether an action's own pace is known when it asks for help.
        rows: shape (3, n, NUM_CLUES).
        targets: shape (3, n).
    """
    n = len(layout.ranks)
    num_ranks = len(layout.rank_offsets) - 1
    forget(memory)
    state.status[:] = 0
    count = 0
    for item in order:
        if item >= n:
            i = item - n
            state.status[i] = 2
            remember(layout, costs, memory, factors, layout.ranks[i], i)
            continue
        i = item
        rank = layout.ranks[i]
        if costs.movable[i] == 0.0 or layout.duration_ms[i] == 0.0 or num_ranks == 1:
            continue
        later = min(i + ahead, layout.rank_offsets[rank + 1] - 1)
        lender = (rank + 1 + count % (num_ranks - 1)) % num_ranks
        twin = costs.where[costs.kinds[i], costs.stand_in[costs.stages[i], lender], costs.units[i]]
        note_clues(costs, state, memory, factors, rank, i, -1, 0.0)
        rows[0, count] = memory.clues
        targets[0, count] = factors[i]
        note_clues(costs, state, memory, factors, rank, later, -1, 0.0)
        rows[1, count] = memory.clues
        targets[1, count] = factors[later]
        note_clues(
            costs, state, memory, factors, lender, i, twin, factors[i] - 1.0 if seen else 0.0
        )
        rows[2, count] = memory.clues
        targets[2, count] = factors[twin if twin >= 0 else i]
        count += 1
    return count
