"""Compiled event loop of the per-block model: helps of single blocks over links that are shared.

Ranks, streams, lender slack and the split of a block are those of the simple model's loop. New are: an
action is a chain of blocks, each with its own lenders and its own round trip; every message (the
pipeline's own too) takes its turn at the sender's way out and the receiver's way in; some pieces need
weights that arrive once a step.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from conductor.migration.kernels import (
    END,
    HELP,
    IDLE,
    RUN,
    _inlined,
    _loop,
    best_split,
    latest_return,
    make_log,
    make_state,
    next_start,
    reset,
    set_event,
)

BEFORE, MOVABLE, AFTER = range(3)
IN, IN_PART, BACK, BACK_PART, BEHIND_PART = range(5)
NEAR, FAR = range(2)
HEADS, PROJECTIONS, MLP, WEIGHTS = range(4)
F, I, W = range(3)


class Pieces(NamedTuple):
    """What can move and where to."""

    layers: np.ndarray
    """int32 (stages,)."""
    share: np.ndarray
    """float64 (kinds, pieces, 3): before, movable, after, as shares of a layer's time."""
    bytes_: np.ndarray
    """float64 (kinds, pieces, 5): of one block's messages."""
    parts: np.ndarray
    """int32 (pieces,): equal parts of each piece; 0 is a piece that never moves."""
    held: np.ndarray
    """int32 (pieces, ranks, stages): parts whose weights a rank holds; all where none are needed."""
    weight_bytes: np.ndarray
    """float64 (pieces,): of one part of one layer."""
    gradient_bytes: np.ndarray
    jobs: np.ndarray
    """int32 (jobs, 3): piece, lender, stage whose weights go out, in order, rank after rank."""
    job_offsets: np.ndarray
    """int64 (ranks + 1,): jobs of each sending rank."""
    ms_per_byte: np.ndarray
    """float64 (2,): near, far."""
    latency_ms: np.ndarray
    nodes: np.ndarray
    ports: np.ndarray


class Wires(NamedTuple):
    """When each way out and in is free: near ports of the ranks, then far ports; and who used them."""

    out_ms: np.ndarray
    in_ms: np.ndarray
    ready_ms: np.ndarray
    """float64 (pieces, ranks, stages): when the weights have arrived."""
    job: np.ndarray
    """int64 (ranks,): the weights that each rank sends now, and the chunks of them that are out."""
    chunk: np.ndarray
    reserved: np.ndarray
    """int32 (ranks,): the borrower that a lender waits for, or -1."""
    block_end_ms: np.ndarray
    """float64 (ranks,): expected end of the running block."""
    help: np.ndarray
    """int32 (ranks, 3): action, piece and parts that a lender works on."""
    used: np.ndarray
    """float64 (pieces, ranks, stages): time saved by each rank for each stage."""
    most: np.ndarray
    """int32 (pieces, ranks, stages): the most parts it did of one block."""
    totals: np.ndarray
    """float64 (4,): helps, bytes moved for helps, bytes of weights and gradients, work moved."""
    message: np.ndarray
    """float64 (rows, 4): way out, way in, start, end; only the first `num_messages` rows are kept."""
    num_messages: np.ndarray
    help_row: np.ndarray
    """float64 (rows, 7): action, lender, piece, parts, start, end, borrower's time saved."""


@numba.njit(cache=True)
def make_wires(pieces, rows):
    """Buffers; `rows` of messages and helps are kept."""
    num_ranks, num_stages = len(pieces.nodes), len(pieces.layers)
    ports = num_ranks + pieces.ports.max() + 1
    shape = (4, num_ranks, num_stages)
    return Wires(
        out_ms=np.zeros(ports), in_ms=np.zeros(ports), ready_ms=np.zeros(shape),
        job=np.zeros(num_ranks, np.int64), chunk=np.zeros(num_ranks, np.int64),
        reserved=np.zeros(num_ranks, np.int32), block_end_ms=np.zeros(num_ranks),
        help=np.zeros((num_ranks, 3), np.int32), used=np.zeros(shape),
        most=np.zeros(shape, np.int32), totals=np.zeros(4),
        message=np.zeros((rows, 4)), num_messages=np.zeros(1, np.int64),
        help_row=np.zeros((rows, 7)),
    )  # fmt: skip


@_inlined
def carry(pieces, wires, source, target, start_ms, ms):
    """Puts a message on the wires between two ranks; returns when it is through.

    It takes its turn: one message at a time through each way out and in, at the full bandwidth.
    """
    out, into = source, target
    if pieces.nodes[source] != pieces.nodes[target]:
        out = len(pieces.nodes) + pieces.ports[source]
        into = len(pieces.nodes) + pieces.ports[target]
    begin = max(start_ms, max(wires.out_ms[out], wires.in_ms[into]))
    end = begin + ms
    wires.out_ms[out] = end
    wires.in_ms[into] = end
    row = wires.num_messages[0]
    if row < len(wires.message):
        wires.message[row, 0], wires.message[row, 1] = out, into
        wires.message[row, 2], wires.message[row, 3] = begin, end
    wires.num_messages[0] += 1
    return end


@_inlined
def wait_ms(pieces, wires, source, target, at_ms):
    """How long a message would wait for its turn now."""
    out, into = source, target
    if pieces.nodes[source] != pieces.nodes[target]:
        out = len(pieces.nodes) + pieces.ports[source]
        into = len(pieces.nodes) + pieces.ports[target]
    return max(max(wires.out_ms[out], wires.in_ms[into]) - at_ms, 0.0)


@_inlined
def link_of(pieces, rank, other):
    """Near or far."""
    return NEAR if pieces.nodes[rank] == pieces.nodes[other] else FAR


@_inlined
def send_weights(layout, costs, pieces, wires, state, rank, now):
    """The next chunk of weights leaves a rank: one part of one layer, so that others get their turn."""
    job = wires.job[rank]
    while job < pieces.job_offsets[rank + 1]:
        piece, lender, stage = pieces.jobs[job, 0], pieces.jobs[job, 1], pieces.jobs[job, 2]
        chunks = pieces.held[piece, lender, stage] * pieces.layers[stage]
        size = pieces.weight_bytes[piece]
        link = link_of(pieces, rank, lender)
        end = carry(pieces, wires, rank, lender, now, size * pieces.ms_per_byte[link])
        wires.totals[2] += size
        wires.chunk[rank] += 1
        if wires.chunk[rank] >= chunks:
            wires.ready_ms[piece, lender, stage] = end + pieces.latency_ms[link]
            wires.chunk[rank] = 0
            wires.job[rank] += 1
        set_event(state, len(pieces.nodes) + rank, IDLE, end)
        return
    set_event(state, len(pieces.nodes) + rank, IDLE, np.inf)


@_inlined
def find_block_lenders(
    layout, costs, rules, pieces, wires, state, rank, i, piece, now, layer_ms, slow, enough_ms
):
    """Ranks that are idle or wait for this one, and could shorten the block; returns how many.

    `state` gets their lines as in the simple model, after the block's start.
    """
    kind, stage = costs.kinds[i], costs.stages[i]
    late = now - rules.latest_start_ms[i]
    before = pieces.share[kind, piece, BEFORE] * layer_ms * slow
    part_ms = pieces.share[kind, piece, MOVABLE] * layer_ms / pieces.parts[piece]
    own_ms = layout.duration_ms[i]
    found = 0
    for lender in range(len(pieces.nodes)):
        if lender == rank or state.event[lender] != IDLE or found == rules.max_candidates:
            continue
        mine = wires.reserved[lender] == rank
        if wires.reserved[lender] >= 0 and not mine:
            continue
        held = pieces.held[piece, lender, stage]
        if held == 0 or wires.ready_ms[piece, lender, stage] > now:
            continue
        link = link_of(pieces, rank, lender)
        per_byte = pieces.ms_per_byte[link]
        size = pieces.bytes_[kind, piece]
        offset = (
            before
            + wait_ms(pieces, wires, rank, lender, now + before)
            + 2.0 * pieces.latency_ms[link]
            + (size[IN] + size[BACK]) * per_byte
        )
        ratio = costs.lend_ms[kind, stage, lender] / own_ms
        slope = part_ms * ratio + (size[IN_PART] + size[BACK_PART]) * per_byte
        if offset + slope > enough_ms:
            continue
        if not mine:
            if latest_return(layout, rules, state, lender, now, late) < now + enough_ms:
                continue
        state.candidates[found] = lender
        state.offset_ms[found] = offset
        state.slope_ms[found] = slope
        state.cap[found] = held
        found += 1
    return found


@_inlined
def choose(
    layout, costs, rules, pieces, wires, state, rank, i, piece, now, layer_ms, slow, best_ms, split
):
    """Chooses lenders of one piece for the block that starts now, one after another while it pays.

    Args:
        best_ms: the shortest block so far.
        split: int32 (MAX_LENDERS, 2), filled with lenders and parts where this is shorter.

    Returns:
        block time and number of lenders; 0 lenders when nothing here is shorter than `best_ms`.
    """
    kind = costs.kinds[i]
    after = pieces.share[kind, piece, AFTER] * layer_ms * slow
    movable = pieces.share[kind, piece, MOVABLE] * layer_ms * slow
    whole = pieces.share[kind, piece, BEFORE] * layer_ms * slow + movable
    parts = pieces.parts[piece]
    count = 0
    if parts == 0 or movable <= 0.0:
        return best_ms, 0
    least = rules.least_gain[i] * (whole + after)
    found = find_block_lenders(
        layout, costs, rules, pieces, wires, state, rank, i, piece, now, layer_ms, slow,
        whole - least,
    )  # fmt: skip
    shortest = whole
    while count < rules.max_lenders and count < found:
        enough = shortest - least
        chosen = -1
        for slot in range(found):
            taken = False
            for k in range(count):
                if state.chosen[k] == slot:
                    taken = True
            if taken:
                continue
            state.chosen[count] = slot
            time = best_split(state, count + 1, whole, movable / parts, parts)
            if time <= enough and state.given[count] and time + after < best_ms:
                shortest, chosen, best_ms = time, slot, time + after
                for k in range(count + 1):
                    split[k, 0] = state.candidates[state.chosen[k]]
                    split[k, 1] = state.given[k]
        if chosen < 0:
            break
        state.chosen[count] = chosen
        count += 1
    return best_ms, count


@_inlined
def start_block(layout, costs, rules, pieces, wires, state, log, split, factors, rank, now):
    """The next block of a rank's action begins: who helps with it, and when it ends."""
    i = state.action[rank]
    kind, stage = costs.kinds[i], costs.stages[i]
    layers = pieces.layers[stage]
    block = state.block[rank]
    factor = factors[i]
    # After one block its rank knows how slow the action is.
    slow = factor if block else 1.0
    layer_ms = layout.duration_ms[i] / layers
    first = last = WEIGHTS
    if kind != W:
        attention = block % 2 == (0 if kind == F else 1)
        first, last = (HEADS, PROJECTIONS) if attention else (MLP, MLP)
    alone = layer_ms * (
        pieces.share[kind, first, BEFORE]
        + pieces.share[kind, first, MOVABLE]
        + pieces.share[kind, first, AFTER]
    )
    best_ms, count, piece = alone * slow, 0, first
    if rules.most_parts[i] > 0:
        for candidate in range(first, last + 1):
            time, lenders = choose(
                layout, costs, rules, pieces, wires, state, rank, i, candidate, now, layer_ms,
                slow, best_ms, split,
            )  # fmt: skip
            if lenders:
                best_ms, count, piece = time, lenders, candidate
    parts = pieces.parts[piece]
    before = pieces.share[kind, piece, BEFORE] * layer_ms * factor
    movable = pieces.share[kind, piece, MOVABLE] * layer_ms
    given = 0
    state.back_ms[i] = 0.0
    for k in range(count):
        lender, q = split[k, 0], split[k, 1]
        given += q
        lend_block(
            layout, costs, pieces, wires, state, factors, rank, i, piece, lender, q, now + before,
            movable / parts, alone * slow - best_ms, now + best_ms,
        )  # fmt: skip
    state.local_end_ms[i] = now + alone * factor
    state.local_ms[rank] = 0.0
    if count:
        state.local_end_ms[i] = now + before + movable * factor * (1.0 - given / parts)
        state.local_ms[rank] = pieces.share[kind, piece, AFTER] * layer_ms * factor
        log.moved[i] += given
        wires.totals[3] += movable * given / parts
    wires.block_end_ms[rank] = now + best_ms
    done = (block + 1) * layer_ms
    if kind != W:
        done = (block + 1) // 2 * layer_ms + (alone if block % 2 == 0 else 0.0)
    rest = layout.duration_ms[i] - done
    state.expected_end_ms[i] = now + best_ms + max(rest, 0.0) * slow + layout.send_ms[i]
    state.free_ms[rank] = state.expected_end_ms[i]
    state.block[rank] = block + 1
    if count:
        set_event(state, rank, RUN, np.inf)
    else:
        finish_block(pieces, wires, state, layout, costs, rank)


@_inlined
def lend_block(
    layout, costs, pieces, wires, state, factors, rank, i, piece, lender, q, ready_ms, part_ms,
    saved_ms, expected_ms,
):  # fmt: skip
    """The input goes out to a lender, which does some parts of the block."""
    kind, stage = costs.kinds[i], costs.stages[i]
    link = link_of(pieces, rank, lender)
    per_byte, latency = pieces.ms_per_byte[link], pieces.latency_ms[link]
    size = pieces.bytes_[kind, piece]
    twin = costs.where[kind, costs.stand_in[stage, lender], costs.units[i]]
    ratio = costs.lend_ms[kind, stage, lender] / layout.duration_ms[i]
    to_lender = size[IN] + size[IN_PART] * q
    start = latency + carry(pieces, wires, rank, lender, ready_ms, to_lender * per_byte)
    end = start + part_ms * q * ratio * factors[twin if twin >= 0 else i]
    row = int(wires.totals[0])
    if row < len(wires.help_row):
        kept = wires.help_row[row]
        kept[0], kept[1], kept[2], kept[3] = i, lender, piece, q
        kept[4], kept[5], kept[6] = start, end, saved_ms
    wires.totals[0] += 1.0
    wires.totals[1] += to_lender
    wires.used[piece, lender, stage] += saved_ms
    wires.most[piece, lender, stage] = max(wires.most[piece, lender, stage], q)
    wires.reserved[lender] = -1
    wires.help[lender, 0], wires.help[lender, 1], wires.help[lender, 2] = i, piece, q
    state.outstanding[i] += 1
    state.free_ms[lender] = expected_ms
    set_event(state, lender, HELP, end)


@_inlined
def finish_block(pieces, wires, state, layout, costs, rank):
    """All parts of a block are there: it ends when its last share is done."""
    i = state.action[rank]
    end = max(state.local_end_ms[i], state.back_ms[i]) + state.local_ms[rank]
    blocks = pieces.layers[costs.stages[i]] * (1 if costs.kinds[i] == W else 2)
    if state.block[rank] == blocks:
        set_event(state, rank, END, end + layout.send_ms[i])
    else:
        set_event(state, rank, RUN, end)


@_inlined
def finish_help(layout, costs, rules, pieces, wires, state, lender, now):
    """A lender is done: the result goes back, what the rank's own backward needs behind it."""
    i, piece, q = wires.help[lender, 0], wires.help[lender, 1], wires.help[lender, 2]
    rank = layout.ranks[i]
    link = link_of(pieces, rank, lender)
    per_byte = pieces.ms_per_byte[link]
    size = pieces.bytes_[costs.kinds[i], piece]
    back = now
    to_rank = size[BACK] + size[BACK_PART] * q
    if to_rank > 0.0:
        back = carry(pieces, wires, lender, rank, now, to_rank * per_byte)
        back += pieces.latency_ms[link]
    behind = size[BEHIND_PART] * q
    if behind > 0.0:
        carry(pieces, wires, lender, rank, now, behind * per_byte)
    wires.totals[1] += to_rank + behind
    state.back_ms[i] = max(state.back_ms[i], back)
    state.outstanding[i] -= 1
    if state.outstanding[i] == 0:
        finish_block(pieces, wires, state, layout, costs, rank)
    turn(layout, costs, rules, pieces, wires, state, lender, now)


@_inlined
def turn(layout, costs, rules, pieces, wires, state, rank, now):
    """A rank that has come free: its next action, or, while that has slack, a late rank's next block."""
    state.free_ms[rank] = now
    wires.reserved[rank] = -1
    time = next_start(layout, state, rank, now)
    if time == now and rules.delay_share > 0.0:
        mine = state.action[rank]
        late = now - rules.latest_start_ms[mine]
        best, whom = 0.0, -1
        for other in range(len(wires.reserved)):
            if other == rank or state.event[other] != RUN:
                continue
            i = state.action[other]
            if rules.most_parts[i] == 0:
                continue
            planned = rules.latest_start_ms[i] + layout.duration_ms[i] + layout.send_ms[i]
            spare = rules.delay_share * (state.expected_end_ms[i] - planned - late)
            block = max(wires.block_end_ms[other] - now, 0.0)
            spare -= block + layout.duration_ms[i] / (2.0 * pieces.layers[costs.stages[i]])
            if spare > best:
                best, whom = spare, other
        if whom >= 0:
            waiting = 0
            for other in range(len(wires.reserved)):
                if wires.reserved[other] == whom:
                    waiting += 1
            if waiting < rules.max_lenders:
                wires.reserved[rank] = whom
                set_event(state, rank, IDLE, np.inf)
                return
    set_event(state, rank, IDLE, time)


@_inlined
def release(layout, costs, rules, wires, state, rank, now):
    """Lenders that waited for a block of this rank and were not chosen go on."""
    for lender in range(len(wires.reserved)):
        if wires.reserved[lender] == rank:
            wires.reserved[lender] = -1
            set_event(state, lender, IDLE, next_start(layout, state, lender, now))


@_inlined
def finish(layout, costs, rules, pieces, wires, state, log, rank, now):
    """An action has ended: its outputs go on the wires."""
    i = state.action[rank]
    state.status[i] = 2
    log.end_ms[i] = now
    if not layout.static:
        state.memory[rank] -= layout.freed[i]
    for slot in range(layout.outputs.shape[1]):
        target = layout.outputs[i, slot]
        if target < 0:
            break
        other = layout.ranks[target]
        arrival = now
        if layout.output_lag_ms[i, slot] > 0.0:
            arrival = carry(pieces, wires, rank, other, now, layout.output_lag_ms[i, slot])
        state.missing[target] -= 1
        state.arrival_ms[target] = max(state.arrival_ms[target], arrival)
        if other != rank and state.missing[target] == 0 and state.event[other] == IDLE:
            if wires.reserved[other] < 0:
                set_event(state, other, IDLE, next_start(layout, state, other, now))
    release(layout, costs, rules, wires, state, rank, now)
    turn(layout, costs, rules, pieces, wires, state, rank, now)


@_loop
def run(layout, costs, rules, pieces, wires, state, log, split, durations, factors):
    """One step. Returns the makespan, or inf when ranks wait for each other for ever."""
    reset(layout, state, log)
    wires.out_ms[:] = 0.0
    wires.in_ms[:] = 0.0
    for piece in range(len(pieces.parts)):
        wires.ready_ms[piece] = np.inf if pieces.weight_bytes[piece] > 0.0 else 0.0
    wires.chunk[:] = 0
    for rank in range(len(pieces.nodes)):
        wires.job[rank] = pieces.job_offsets[rank]
    wires.reserved[:] = -1
    wires.used[:] = 0.0
    wires.most[:] = 0
    wires.totals[:] = 0.0
    wires.num_messages[0] = 0
    num_ranks = len(pieces.nodes)
    for rank in range(num_ranks):
        send_weights(layout, costs, pieces, wires, state, rank, 0.0)
        set_event(state, rank, IDLE, next_start(layout, state, rank, 0.0))
    ended = 0
    makespan = 0.0
    while True:
        rank = state.tree[1]
        now = state.event_ms[rank]
        if now == np.inf:
            break
        event = state.event[rank]
        if rank >= num_ranks:
            send_weights(layout, costs, pieces, wires, state, rank - num_ranks, now)
        elif event == IDLE:
            i = state.action[rank]
            state.heads[layout.stream_of[i]] += 1
            state.status[i] = 1
            log.start_ms[i] = now
            if not layout.static:
                state.memory[rank] += layout.allocated[i]
                while (
                    state.cursor[rank] < layout.rank_offsets[rank + 1]
                    and state.status[state.cursor[rank]] != 0
                ):
                    state.cursor[rank] += 1
            state.block[rank] = 0
            state.expected_end_ms[i] = now + layout.duration_ms[i] + layout.send_ms[i]
            if costs.movable[i] > 0.0:
                start_block(
                    layout, costs, rules, pieces, wires, state, log, split, factors, rank, now
                )
            else:
                state.free_ms[rank] = state.expected_end_ms[i]
                set_event(state, rank, END, now + durations[i] + layout.send_ms[i])
        elif event == RUN:
            start_block(layout, costs, rules, pieces, wires, state, log, split, factors, rank, now)
            release(layout, costs, rules, wires, state, rank, now)
        elif event == END:
            ended += 1
            makespan = now
            finish(layout, costs, rules, pieces, wires, state, log, rank, now)
        else:
            finish_help(layout, costs, rules, pieces, wires, state, rank, now)
    if ended < len(layout.ranks):
        return np.inf
    return gradients_back(layout, costs, pieces, wires, makespan)


@_inlined
def gradients_back(layout, costs, pieces, wires, makespan):
    """Weight gradients that lenders gathered go home when the step's work is done."""
    last = makespan
    size = pieces.gradient_bytes[WEIGHTS]
    for stage in range(len(pieces.layers)):
        owner = layout.ranks[costs.where[F, stage, 0]]
        for lender in range(len(pieces.nodes)):
            parts = wires.most[WEIGHTS, lender, stage]
            if parts:
                total = size * parts * pieces.layers[stage]
                link = link_of(pieces, lender, owner)
                end = carry(
                    pieces, wires, lender, owner, makespan, total * pieces.ms_per_byte[link]
                )
                wires.totals[2] += total
                last = max(last, end + pieces.latency_ms[link])
    return last


@numba.njit(cache=True)
def run_draws(layout, costs, rules, pieces, durations, factors, totals, used, most):
    """Many steps; fills `totals` (draws, 4), adds up `used` and `most`. Returns makespans."""
    draws, n = durations.shape
    state = make_state(n, 2 * len(pieces.nodes), len(layout.stream_offsets) - 1)
    log = make_log(n)
    wires = make_wires(pieces, 0)
    split = np.zeros((4, 2), np.int32)
    makespans = np.empty(draws)
    for draw in range(draws):
        makespans[draw] = run(
            layout, costs, rules, pieces, wires, state, log, split, durations[draw], factors[draw]
        )
        totals[draw] = wires.totals
        used += wires.used
        most[:] = np.maximum(most, wires.most)
    return makespans
