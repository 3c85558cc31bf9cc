"""Compiled comparisons: at some decisions of an episode every choice is tried and played to the end.

The event loop's whole state is copied before the event in which the decision falls; each choice is forced in a
copy, where the policy's best follows, under the same durations.
"""

from __future__ import annotations

import numba
import numpy as np

from conductor.migration.kernels import IDLE, RUN, make_log, make_state
from conductor.rl.kernels import copy, copy_state, counting_nothing, uniform
from conductor.rl.two_tier.kernels import advance, begin_run, make_memory, run_on
from conductor.rl.two_tier.policy.kernels import COUNT, KIND, LEND, OPTION, ORDER, OWN, make_desk


@numba.njit(cache=True, nogil=True)
def copy_run(a, b, desk, other_desk, memory, other, log, record):
    """Makes a second run equal to one under way; nothing of either policy decision to come is kept."""
    copy(a.tree, b.tree)
    copy(a.event_ms, b.event_ms)
    copy(a.event, b.event)
    copy(a.action, b.action)
    copy(a.free_ms, b.free_ms)
    copy(a.by_free, b.by_free)
    copy(a.place, b.place)
    copy(a.pending, b.pending)
    copy(a.helping, b.helping)
    copy(a.memory, b.memory)
    copy(a.cursor, b.cursor)
    copy(a.heads, b.heads)
    copy(a.missing, b.missing)
    copy(a.arrival_ms, b.arrival_ms)
    copy(a.status, b.status)
    copy(a.expected_end_ms, b.expected_end_ms)
    copy(a.local_end_ms, b.local_end_ms)
    copy(a.back_ms, b.back_ms)
    copy(a.outstanding, b.outstanding)
    copy(a.lenders, b.lenders)
    copy(a.local_ms, b.local_ms)
    copy(a.local_parts, b.local_parts)
    copy(a.block, b.block)
    copy(memory.excess, other.excess)
    copy(memory.told, other.told)
    copy(memory.latest, other.latest)
    copy(memory.smooth, other.smooth)
    copy(memory.ended, other.ended)
    copy(memory.clock_ms, other.clock_ms)
    copy(memory.warned_ms, other.warned_ms)
    copy(memory.hope_ms, other.hope_ms)
    copy_state(desk.s, other_desk.s)
    copy(desk.busy, other_desk.busy)
    copy(log.start_ms, record.start_ms)
    copy(log.moved, record.moved)
    copy(log.num_helps, record.num_helps)
    for entry in range(log.num_helps[0]):
        record.help_action[entry] = log.help_action[entry]
        record.help_lender[entry] = log.help_lender[entry]
        record.help_parts[entry] = log.help_parts[entry]
        record.help_ready_ms[entry] = log.help_ready_ms[entry]
        record.help_expected_ready_ms[entry] = log.help_expected_ready_ms[entry]
        other.work_ms[entry] = memory.work_ms[entry]


@numba.njit(cache=True, nogil=True)
def pick_tried(tried, count, own, seed, turn):
    """Which options of a lending decision to try: nobody, the policy's own, and others at random."""
    tried[0] = 0
    if count <= len(tried):
        for k in range(count):
            tried[k] = k
        return count
    size = 1
    if own:
        tried[1] = own
        size = 2
    while size < len(tried):
        turn += 1
        option = np.int64(uniform(seed, turn) * count)
        new = True
        for k in range(size):
            if tried[k] == option:
                new = False
        if new:
            tried[size] = option
            size += 1
    return size


@counting_nothing
def next_event(layout, costs, rules, mind, desk, state, memory, log, durations, factors):
    """`advance`, compiled once for both its places."""
    return advance(layout, costs, rules, mind, desk, state, memory, log, durations, factors)


@numba.njit(cache=True, nogil=True)
def compare(
    layout, costs, rules, mind, policy, durations, factors, shares, seeds, order_seen, order_choices,
    order_plan, order_outcomes, lend_seen, lend_options, lend_leads, lend_outcomes, lend_counts,
    lengths, makespans,
):  # fmt: skip
    """Plays sampled episodes; of each kind of decision a share is tried, as far as there is room for it.

    Args:
        shares: float64 (2,): of decisions of each kind.
        order_seen: (episodes, room, stages a rank, NUM_FEATURES): what was observed.
        order_choices: (episodes, room): bits of the slots that could be chosen.
        order_plan: (episodes, room): the plan's slot.
        order_outcomes: (episodes, room, slots): makespans, 0 for what could not be chosen.
        lend_seen: (episodes, room, NUM_FEATURES): the borrower's stage.
        lend_options: (episodes, room, tries, NUM_OPTION_FEATURES).
        lend_leads: (episodes, room, tries): scores without the network.
        lend_outcomes: the same shape; makespans.
        lend_counts: (episodes, room): options that were tried.
        lengths: int64 (episodes, 2): decisions of each kind.
        makespans: float64 (episodes,): of the sampled episodes.
    """
    n, num_ranks = len(layout.ranks), len(layout.rank_streams) - 1
    num_streams, num_units = len(layout.stream_offsets) - 1, costs.where.shape[2]
    state, log = make_state(n, num_ranks, num_streams), make_log(n)
    memory, own = make_memory(num_units, num_ranks, n), make_desk(policy)
    trial, record = make_state(n, num_ranks, num_streams), make_log(n)
    other, desk = make_memory(num_units, num_ranks, n), make_desk(policy)
    tried = np.zeros(lend_options.shape[2], np.int64)
    for e in range(len(durations)):
        begin_run(layout, costs, mind, own, state, memory, log, factors[e])
        own.sample[0] = seeds[e]
        turn = 0
        counts = lengths[e]
        counts[:] = 0
        while True:
            rank = state.tree[1]
            event, kind = state.event[rank], -1
            if policy.orders and event == IDLE and state.action[rank] < 0:
                kind = ORDER
            elif policy.lends and (event == RUN or (event == IDLE and not rules.postpone)):
                kind = LEND
            turn += 1
            if (
                kind >= 0
                and counts[kind] < (len(order_plan[e]) if kind == ORDER else len(lend_seen[e]))
                and uniform(seeds[e] + np.uint64(1), turn) < shares[kind]
            ):
                copy_run(state, trial, own, desk, memory, other, log, record)
                desk.forced[KIND], desk.forced[OPTION] = kind, -1
                next_event(
                    layout, costs, rules, mind, desk, trial, other, record, durations[e], factors[e]
                )
                t = counts[kind]
                decided = desk.forced[KIND] == -1
                desk.forced[KIND] = -1
                if decided and kind == ORDER:
                    choices = desk.forced[COUNT]
                    order_plan[e, t] = desk.forced[OWN]
                    order_choices[e, t] = choices
                    order_seen[e, t] = desk.kept
                    for option in range(order_outcomes.shape[2]):
                        order_outcomes[e, t, option] = 0.0
                        if (choices >> option) & 1:
                            copy_run(state, trial, own, desk, memory, other, log, record)
                            desk.forced[KIND], desk.forced[OPTION] = kind, option
                            order_outcomes[e, t, option] = run_on(
                                layout, costs, rules, mind, desk, trial, other, record, durations[e],
                                factors[e],
                            )  # fmt: skip
                    counts[kind] += 1
                elif decided:
                    size = pick_tried(
                        tried, desk.forced[COUNT], desk.forced[OWN], seeds[e] + np.uint64(2), turn * 64
                    )  # fmt: skip
                    i = trial.action[rank]
                    lend_seen[e, t] = desk.kept[policy.p.slots[i] // 3]
                    lend_counts[e, t] = size
                    for k in range(size):
                        lend_options[e, t, k] = desk.seen[tried[k]]
                        lend_leads[e, t, k] = desk.leads[tried[k]]
                    for k in range(size):
                        copy_run(state, trial, own, desk, memory, other, log, record)
                        desk.forced[KIND], desk.forced[OPTION] = kind, tried[k]
                        lend_outcomes[e, t, k] = run_on(
                            layout, costs, rules, mind, desk, trial, other, record, durations[e],
                            factors[e],
                        )  # fmt: skip
                    counts[kind] += 1
            if not next_event(
                layout, costs, rules, mind, own, state, memory, log, durations[e], factors[e]
            ):
                break
        makespans[e] = memory.clock_ms[0] if memory.ended[0] == n else np.inf
