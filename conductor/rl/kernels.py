"""Compiled environment: the pipeline as decisions of ranks, one draw at a time, on arrays.

One decision is one rank that has come free and has at least one action that could start now. It picks
a slot: F, I or W of one of its stages (in micro-batch order), or `wait`. A waiting rank is asked
again when something it could not do before becomes possible; should the whole pipeline stand still, the
first rank that waits is asked again without `wait` (a time-out in a real run), so no wait is endless. A
choice of one is not asked at all.

Whatever a rank observes it knows in a real run: its own counters, memory and past durations, the plan with
its expected times, and the messages that have arrived. `busy` (realised) is read only for actions that
have ended; the one exception is `potential`, the training reward, which no policy sees.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numba
import numpy as np

F, I, W = 0, 1, 2
KIND_FEATURES, STAGE_FEATURES, RANK_FEATURES = 8, 10, 9
NUM_FEATURES = 3 * KIND_FEATURES + STAGE_FEATURES + RANK_FEATURES
"""Length of one stage's observation (its rank's features are repeated in each)."""

PLAN_FEATURES = (
    *(kind * KIND_FEATURES + index for kind in (F, I, W) for index in (3, 4, 7)),
    3 * KIND_FEATURES + STAGE_FEATURES + 6,
)
"""Those that tell the position in the plan and its times."""

NETWORK, SAMPLE, REPLAY, GREEDY, READY_FIRST = 0, 1, 2, 3, 4
"""Who decides in `rollout`: the network's best, a sample of it, the plan in strict order, the rule I before
F before W, the first action of the plan that could start."""

_SMOOTHING = 0.3


def counting_nothing(function, **options):
    """Compiles without reference counts, for functions that allocate nothing.

    Each call passes some forty arrays inside `p` and `s`; counting them in and out takes ten times longer
    than what these functions do. They may call only their like: Numba would compile any other without counts,
    too, which fails where it assigns a slice.
    """
    compiler = numba.njit(cache=True, nogil=True, _nrt=False, **options)  # type: ignore[call-overload]  # private
    return compiler(function)


class Arrays(NamedTuple):
    """A pipeline with a plan, constant over an episode. n actions in plan order, S stages, R ranks, M
    micro-batches, V stages a rank at most."""

    rank_offsets: np.ndarray  # int64 (R + 1,)
    ranks: np.ndarray  # int32 (n,)
    inputs: np.ndarray  # int32 (n, 4)
    input_lags: np.ndarray  # float64 (n, 4)
    outputs: np.ndarray  # int32 (n, 4)
    order: np.ndarray  # int32 (n,), topological
    allocated: np.ndarray  # float64 (n,)
    freed: np.ndarray  # float64 (n,)
    limits: np.ndarray  # float64 (R,)
    local_stages: np.ndarray  # int32 (R, V), ascending, -1 behind the last
    actions: np.ndarray  # int32 (S * 3, M): by stream (stage * 3 + kind) and micro-batch
    streams: np.ndarray  # int32 (n,)
    slots: np.ndarray  # int32 (n,): index among its rank's choices
    microbatches: np.ndarray  # int32 (n,)
    expected: np.ndarray  # float64 (n,): busy time
    unit: np.ndarray  # float64 (R,): expected time of one micro-batch on the rank
    scale: float  # the largest of them
    held: np.ndarray  # float64 (R,): memory of one micro-batch on the rank
    plan_start: np.ndarray  # float64 (n,): the plan under expected times
    plan_ready: np.ndarray  # float64 (n,): when its inputs are there
    plan_latest: np.ndarray  # float64 (n,): latest start that keeps the plan's makespan


class State(NamedTuple):
    """An episode under way."""

    cursor: np.ndarray  # int32 (S * 3,): next micro-batch of each stream
    arrived: np.ndarray  # int32 (S * 3,): micro-batches whose inputs are seen to be there
    ready: np.ndarray  # float64 (S * 3,): when the next action could start, inf: unknown
    ends: np.ndarray  # float64 (n,): inf: not started
    plan_cursor: np.ndarray  # int64 (R,): first action of the plan not started
    declined: np.ndarray  # int64 (R,): slots (bits) possible when the rank chose to wait
    free_at: np.ndarray  # float64 (R,)
    memory: np.ndarray  # float64 (R,)
    peak: np.ndarray  # float64 (R,)
    ratio: np.ndarray  # float64 (R,): own realised over expected time, smoothed
    spread: np.ndarray  # float64 (R,): mean distance of that from 1, smoothed
    wake: np.ndarray  # float64 (leaves,): when the rank is to be asked next
    tree: np.ndarray  # int32 (2 * leaves,): tournament of `wake`; the root is at 1
    work: np.ndarray  # float64 (R, 2): realised work left: F and I, all
    rest: np.ndarray  # int32 (R, 2): the same as numbers of actions
    head: np.ndarray  # float64 (R,): earliest start of its first action
    chain: np.ndarray  # float64 (R,): path from its last I to the end of the step
    numbers: np.ndarray  # float64 (3,): indices below
    counts: np.ndarray  # int64 (5,): indices below


NOW, MAKESPAN, POTENTIAL = 0, 1, 2
LEFT, RANK, CHOICES, STALLED, DECISIONS = 0, 1, 2, 3, 4
"""Indices of `numbers` (times) and `counts`: actions left, the rank that decides, its slots as bits, whether
the pipeline stood still, decisions so far."""


@counting_nothing
def num_leaves(num_ranks):
    """Leaves of a tournament tree over the ranks."""
    leaves = 1
    while leaves < num_ranks:
        leaves *= 2
    return leaves


@numba.njit(cache=True, nogil=True)
def new_states(p, episodes):
    """Room for a number of episodes: a `State` whose arrays have a leading axis."""
    n, num_streams, num_ranks = len(p.ranks), len(p.actions), len(p.limits)
    leaves = num_leaves(num_ranks)
    return State(
        np.empty((episodes, num_streams), np.int32),
        np.empty((episodes, num_streams), np.int32),
        np.empty((episodes, num_streams)),
        np.empty((episodes, n)),
        np.empty((episodes, num_ranks), np.int64),
        np.empty((episodes, num_ranks), np.int64),
        np.empty((episodes, num_ranks)),
        np.empty((episodes, num_ranks)),
        np.empty((episodes, num_ranks)),
        np.empty((episodes, num_ranks)),
        np.empty((episodes, num_ranks)),
        np.empty((episodes, leaves)),
        np.empty((episodes, 2 * leaves), np.int32),
        np.empty((episodes, num_ranks, 2)),
        np.empty((episodes, num_ranks, 2), np.int32),
        np.empty((episodes, num_ranks)),
        np.empty((episodes, num_ranks)),
        np.empty((episodes, 3)),
        np.empty((episodes, 5), np.int64),
    )


@numba.njit(cache=True, nogil=True)
def one_state(s, e):
    """Episode e of a batch, as views."""
    return State(
        s.cursor[e], s.arrived[e], s.ready[e], s.ends[e], s.plan_cursor[e], s.declined[e], s.free_at[e],
        s.memory[e], s.peak[e], s.ratio[e], s.spread[e], s.wake[e], s.tree[e], s.work[e],
        s.rest[e], s.head[e], s.chain[e], s.numbers[e], s.counts[e],
    )  # fmt: skip


@counting_nothing
def ready_time(p, ends, i):
    """When action i's inputs are there; inf while one of them has not started."""
    time = 0.0
    for slot in range(p.inputs.shape[1]):
        j = p.inputs[i, slot]
        if j < 0:
            break
        time = max(time, ends[j] + p.input_lags[i, slot])
    return time


@numba.njit(cache=True, nogil=True)
def plan_times(p, busy):
    """The plan under given times: start, inputs there, latest start that keeps its makespan."""
    n = len(p.ranks)
    start, ready, ends = np.empty(n), np.empty(n), np.empty(n)
    for i in p.order:
        ready[i] = ready_time(p, ends, i)
        start[i] = ready[i]
        if i > p.rank_offsets[p.ranks[i]]:
            start[i] = max(ready[i], ends[i - 1])
        ends[i] = start[i] + busy[i]
    latest_end = np.full(n, ends.max())
    for k in range(n - 1, -1, -1):
        i = p.order[k]
        latest = latest_end[i] - busy[i]
        if i > p.rank_offsets[p.ranks[i]]:
            latest_end[i - 1] = min(latest_end[i - 1], latest)
        for slot in range(p.inputs.shape[1]):
            j = p.inputs[i, slot]
            if j < 0:
                break
            latest_end[j] = min(latest_end[j], latest - p.input_lags[i, slot])
    return start, ready, latest_end - busy


@counting_nothing
def clear(p, s):
    """Where nothing has started and nobody is to be asked."""
    s.cursor[:] = 0
    s.arrived[:] = 0
    s.ends[:] = np.inf
    s.declined[:] = 0
    s.free_at[:] = 0.0
    s.memory[:] = 0.0
    s.peak[:] = 0.0
    s.ratio[:] = 1.0
    s.spread[:] = 0.0
    s.wake[:] = np.inf
    s.numbers[:] = 0.0
    s.counts[:] = 0
    s.counts[LEFT] = len(p.ranks)
    s.work[:] = 0.0
    s.rest[:] = 0
    for rank in range(len(p.limits)):
        s.plan_cursor[rank] = p.rank_offsets[rank]
    for stream in range(len(p.actions)):
        s.ready[stream] = ready_time(p, s.ends, p.actions[stream, 0])
    leaves = len(s.wake)
    for rank in range(leaves):
        s.tree[leaves + rank] = rank
    for node in range(leaves - 1, 0, -1):
        s.tree[node] = s.tree[2 * node]


@numba.njit(cache=True, nogil=True)
def reset(p, s, busy):
    """Starts an episode under realised times `busy` and goes to the first decision."""
    num_ranks, num_microbatches = len(p.limits), p.actions.shape[1]
    clear(p, s)
    for i in range(len(p.ranks)):
        if p.streams[i] % 3 != W:
            s.work[p.ranks[i], 0] += busy[i]
            s.rest[p.ranks[i], 0] += 1
        s.work[p.ranks[i], 1] += busy[i]
        s.rest[p.ranks[i], 1] += 1
    for rank in range(num_ranks):
        stage = p.local_stages[rank, 0]
        s.head[rank] = 0.0
        for other in range(stage):
            i, j = p.actions[other * 3 + F, 0], p.actions[(other + 1) * 3 + F, 0]
            s.head[rank] += busy[i] + lag_between(p, i, j)
        s.chain[rank] = busy[p.actions[W, num_microbatches - 1]]
        for other in range(stage, 0, -1):
            i = p.actions[other * 3 + I, num_microbatches - 1]
            j = p.actions[(other - 1) * 3 + I, num_microbatches - 1]
            s.chain[rank] += lag_between(p, i, j) + busy[j]
    for rank in range(num_ranks):
        refresh(p, s, rank)
    s.numbers[POTENTIAL] = potential(p, s)
    next_decision(p, s, busy)


@counting_nothing
def lag_between(p, i, j):
    """Transfer time from action i to its output j."""
    for slot in range(p.inputs.shape[1]):
        if p.inputs[j, slot] == i:
            return p.input_lags[j, slot]
    return 0.0


@counting_nothing
def potential(p, s):
    """A lower bound of the episode's makespan from here: the per-rank bound, under realised times."""
    bound = s.numbers[MAKESPAN]
    for rank in range(len(p.limits)):
        if s.rest[rank, 1] > 0:
            at = max(s.free_at[rank], s.head[rank], s.numbers[NOW])
            bound = max(bound, at + s.work[rank, 1])
            if s.rest[rank, 0] > 0:
                bound = max(bound, at + s.work[rank, 0] + s.chain[rank])
    return bound


@counting_nothing
def fits(p, s, rank, stage, i):
    """Whether forward i fits into its rank's memory now, and all that is under way can still be finished.

    With several stages a rank it is the banker's rule: what pending W would free counts as free, and every
    micro-batch under way, when all older ones are through, must be able to get through the rank's later
    stages. What they need grows with the micro-batch in steps, one where each stage's next forward is, and
    what is held falls: it is enough to look at the steps. The rule forbids nothing that can be finished.
    """
    limit = p.limits[rank] + 1e-9 * (1.0 + p.held[rank])
    if s.memory[rank] + p.allocated[i] > limit:
        return False
    stages = p.local_stages[rank]
    if len(stages) == 1 or limit == np.inf:
        return True
    newest = forwards(p, s, stages[0], stage)
    for v in range(len(stages)):
        if stages[v] < 0:
            break
        m = forwards(p, s, stages[v], stage) if v else s.cursor[stages[0] * 3 + I]
        if m >= newest:
            continue
        taken = 0.0
        for other in stages:
            if other < 0:
                break
            held = max(forwards(p, s, other, stage), m + 1) - max(m, s.cursor[other * 3 + I])
            taken += held * p.allocated[p.actions[other * 3 + F, 0]]
        if taken > limit:
            return False
    return True


@counting_nothing
def forwards(p, s, stage, candidate):
    """Forwards of a stage that have started, one more if it is the candidate's."""
    return s.cursor[stage * 3 + F] + (stage == candidate)


@counting_nothing
def refresh(p, s, rank):
    """Finds when a rank is to be asked next, and plays the tournament again along its path."""
    wake = np.inf
    for v in range(p.local_stages.shape[1]):
        stage = p.local_stages[rank, v]
        if stage < 0:
            break
        for kind in range(3):
            stream = stage * 3 + kind
            time = s.ready[stream]
            if time >= wake or (s.declined[rank] >> (3 * v + kind)) & 1:
                continue
            if kind == F and not fits(p, s, rank, stage, p.actions[stream, s.cursor[stream]]):
                continue
            wake = time
    s.wake[rank] = max(wake, s.free_at[rank])
    node = (len(s.wake) + rank) // 2
    while node:
        left, right = s.tree[2 * node], s.tree[2 * node + 1]
        s.tree[node] = left if s.wake[left] <= s.wake[right] else right
        node //= 2


@counting_nothing
def start(p, s, busy, i):
    """The deciding rank starts action i now."""
    rank, stream = p.ranks[i], p.streams[i]
    kind = stream % 3
    now = s.numbers[NOW]
    end = now + busy[i]
    s.ends[i] = end
    s.free_at[rank] = end
    s.numbers[MAKESPAN] = max(s.numbers[MAKESPAN], end)
    s.memory[rank] += p.allocated[i]
    s.peak[rank] = max(s.peak[rank], s.memory[rank])
    s.memory[rank] -= p.freed[i]  # at its end, before the rank decides again
    if kind != W:
        s.work[rank, 0] -= busy[i]
        s.rest[rank, 0] -= 1
    s.work[rank, 1] -= busy[i]
    s.rest[rank, 1] -= 1
    if p.expected[i] > 0.0:
        ratio = busy[i] / p.expected[i]
        s.ratio[rank] += _SMOOTHING * (ratio - s.ratio[rank])
        s.spread[rank] += _SMOOTHING * (abs(ratio - 1.0) - s.spread[rank])
    s.counts[LEFT] -= 1
    s.declined[rank] = 0
    s.cursor[stream] += 1
    s.ready[stream] = np.inf
    if s.cursor[stream] < p.actions.shape[1]:
        s.ready[stream] = ready_time(p, s.ends, p.actions[stream, s.cursor[stream]])
    last = p.rank_offsets[rank + 1]
    while s.plan_cursor[rank] < last and s.ends[s.plan_cursor[rank]] < np.inf:
        s.plan_cursor[rank] += 1
    for slot in range(p.outputs.shape[1]):
        j = p.outputs[i, slot]
        if j < 0:
            break
        if p.microbatches[j] == s.cursor[p.streams[j]]:
            s.ready[p.streams[j]] = ready_time(p, s.ends, j)
            if p.ranks[j] != rank:
                refresh(p, s, p.ranks[j])
    refresh(p, s, rank)


@counting_nothing
def next_decision(p, s, busy):
    """Goes on to the next rank that has a real choice, or to the end.

    Afterwards `count[LEFT]` is 0 at the end, -1 if nothing can go on (a limit below one micro-batch).
    """
    while s.counts[LEFT]:
        rank = s.tree[1]
        s.counts[STALLED] = 0
        if s.wake[rank] == np.inf:
            rank = 0
            while rank < len(p.limits) and not s.declined[rank]:
                rank += 1
            if rank == len(p.limits):
                s.counts[LEFT] = -1
                return
            s.counts[STALLED] = 1
            for other in range(len(s.free_at)):
                s.numbers[NOW] = max(s.numbers[NOW], s.free_at[other])
        else:
            s.numbers[NOW] = s.wake[rank]
        only = ask(p, s, rank)
        if only < 0:
            return
        start(p, s, busy, only)


@counting_nothing
def ask(p, s, rank):
    """Notes what a rank may choose from now; the action that is left to it where that is no choice, else -1."""
    now, wait = s.numbers[NOW], 3 * p.local_stages.shape[1]
    choices, pending, num_choices, only = 0, False, 0, 0
    for v in range(p.local_stages.shape[1]):
        stage = p.local_stages[rank, v]
        if stage < 0:
            break
        for kind in range(3):
            stream = stage * 3 + kind
            if s.cursor[stream] == p.actions.shape[1]:
                continue
            i = p.actions[stream, s.cursor[stream]]
            if kind == F and not fits(p, s, rank, stage, i):
                continue
            if s.ready[stream] <= now:
                choices |= 1 << (3 * v + kind)
                num_choices += 1
                only = i
            else:
                pending = True
    if pending and not s.counts[STALLED]:
        choices |= 1 << wait
    elif num_choices == 1:
        return only
    s.counts[RANK] = rank
    s.counts[CHOICES] = choices
    s.counts[DECISIONS] += 1
    return -1


@counting_nothing
def step(p, s, busy, slot):
    """Carries out a choice and goes on to the next decision."""
    i = chosen(p, s, slot)
    if i >= 0:
        start(p, s, busy, i)
    next_decision(p, s, busy)


@counting_nothing
def chosen(p, s, slot):
    """The action that the deciding rank's choice means; -1 after a wait, which is noted."""
    rank, wait = s.counts[RANK], 3 * p.local_stages.shape[1]
    if slot == wait:
        s.declined[rank] = s.counts[CHOICES] & ~(1 << wait)
        refresh(p, s, rank)
        return -1
    stream = p.local_stages[rank, slot // 3] * 3 + slot % 3
    return p.actions[stream, s.cursor[stream]]


@counting_nothing
def reward(p, s):
    """What the lower bound of the makespan has grown by since the last call, negative, in multiples of
    `scale`. An episode's rewards add up to its bound less its makespan."""
    before = s.numbers[POTENTIAL]
    s.numbers[POTENTIAL] = potential(p, s)
    return (before - s.numbers[POTENTIAL]) / p.scale


@counting_nothing
def signed_log(x):
    """Compresses a ratio of any size without clipping it."""
    return np.log1p(x) if x >= 0.0 else -np.log1p(-x)


@counting_nothing
def observe(p, s, busy, out):
    """Writes what the deciding rank knows: float32, shape (V, NUM_FEATURES), a row for each of its
    stages. Times are in expected times of a micro-batch on the rank."""
    rank, now, choices = s.counts[RANK], s.numbers[NOW], s.counts[CHOICES]
    num_microbatches, num_stages = p.actions.shape[1], len(p.actions) // 3
    unit = p.unit[rank]
    planned = s.plan_cursor[rank]
    room = np.float64(num_microbatches)
    if p.limits[rank] < np.inf and p.held[rank] > 0.0:
        room = (p.limits[rank] - s.memory[rank]) / p.held[rank]
    first = 3 * KIND_FEATURES + STAGE_FEATURES
    for v in range(p.local_stages.shape[1]):
        stage = p.local_stages[rank, v]
        if stage < 0:
            out[v, :] = 0.0
            continue
        for kind in range(3):
            stream = stage * 3 + kind
            at = kind * KIND_FEATURES
            m = s.cursor[stream]
            if m == num_microbatches:
                out[v, at : at + KIND_FEATURES] = 0.0
                continue
            i = p.actions[stream, m]
            ready = s.ready[stream]
            out[v, at] = (choices >> (3 * v + kind)) & 1
            out[v, at + 1] = ready <= now
            if ready > now:  # the plan's time, as late as the one before was
                ready = p.plan_ready[i]
                if m > 0:
                    previous = p.actions[stream, m - 1]
                    ready += ready_time(p, s.ends, previous) - p.plan_ready[previous]
            out[v, at + 2] = 1.0
            out[v, at + 3] = i == planned
            out[v, at + 4] = 1.0 / (1.0 + (i - planned))
            out[v, at + 5] = signed_log((ready - now) / unit)
            out[v, at + 6] = p.expected[i] / unit
            out[v, at + 7] = signed_log((p.plan_latest[i] - now) / unit)
            while s.arrived[stream] < num_microbatches:
                i = p.actions[stream, s.arrived[stream]]
                if ready_time(p, s.ends, i) > now:
                    break
                s.arrived[stream] += 1
        at = 3 * KIND_FEATURES
        forwards, inputs, weights = (
            s.cursor[stage * 3 + F], s.cursor[stage * 3 + I], s.cursor[stage * 3 + W]
        )  # fmt: skip
        out[v, at] = np.log1p(np.float64(forwards - inputs))
        out[v, at + 1] = np.log1p(np.float64(inputs - weights))
        out[v, at + 2] = np.log1p(np.float64(num_microbatches - forwards))
        out[v, at + 3] = np.log1p(np.float64(max(s.arrived[stage * 3 + F] - forwards, 0)))
        out[v, at + 4] = np.log1p(np.float64(max(s.arrived[stage * 3 + I] - inputs, 0)))
        out[v, at + 5] = inputs / num_microbatches
        out[v, at + 6] = np.log1p(np.float64(num_stages - 1 - stage))
        out[v, at + 7] = np.log1p(np.float64(stage))
        out[v, at + 8] = message_ratio(p, s, busy, stage, F) - 1.0
        out[v, at + 9] = message_ratio(p, s, busy, stage, I) - 1.0
        out[v, first] = np.log1p(room)
        out[v, first + 1] = 1.0 / (1.0 + room)
        out[v, first + 2] = s.ratio[rank] - 1.0
        out[v, first + 3] = s.spread[rank]
        out[v, first + 4] = s.declined[rank] != 0
        out[v, first + 5] = s.counts[STALLED]
        out[v, first + 6] = signed_log((now - p.plan_start[planned]) / unit)
        out[v, first + 7] = np.log1p(np.float64(p.rank_offsets[rank + 1] - planned))
        out[v, first + 8] = np.log1p(np.float64(num_microbatches))


@counting_nothing
def message_ratio(p, s, busy, stage, kind):
    """Realised over expected time of the neighbour's action behind the last message; 1 before the first."""
    stream = stage * 3 + kind
    if s.arrived[stream] == 0:
        return 1.0
    i = p.actions[stream, s.arrived[stream] - 1]
    for slot in range(p.inputs.shape[1]):
        j = p.inputs[i, slot]
        if j >= 0 and p.ranks[j] != p.ranks[i] and p.expected[j] > 0.0:
            return busy[j] / p.expected[j]
    return 1.0


@partial(counting_nothing, fastmath={"contract", "nsz"})
def layer(x, weight, bias, out):
    """One linear layer, float32: `weight` has a row an input, so that the inner loop runs on vectors and
    inputs that ReLU has put to zero cost nothing."""
    copy(bias, out)
    for i in range(len(x)):
        value = x[i]
        if value != 0.0:
            for j in range(len(out)):
                out[j] += value * weight[i, j]


@counting_nothing
def network(weights, observation, num_local, hidden, other, row, logits):
    """The policy network on one observation: a logit for each slot, the wait's last (the mean over the
    rank's stages)."""
    wait = len(logits) - 1
    logits[wait] = 0.0
    for v in range(num_local):
        layer(observation[v], weights[0], weights[1][0], hidden)
        for j in range(len(hidden)):
            hidden[j] = max(hidden[j], np.float32(0.0))
        layer(hidden, weights[2], weights[3][0], other)
        for j in range(len(other)):
            other[j] = max(other[j], np.float32(0.0))
        layer(other, weights[4], weights[5][0], row)
        for kind in range(3):
            logits[3 * v + kind] = row[kind]
        logits[wait] += row[3] / np.float32(num_local)


@numba.njit(cache=True, nogil=True)
def decide(weights, observation, count, choices):
    """One decision of the policy outside an episode, on the first `count` stages of an observation."""
    logits = np.empty(3 * len(observation) + 1, np.float32)
    hidden, other, row = scratch(weights)
    network(weights, observation, count, hidden, other, row, logits)
    return pick(logits, choices, -1.0)


@counting_nothing
def uniform(seed, index):
    """A number in [0, 1) from a seed and a counter (splitmix64): the same whoever runs the episode."""
    z = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * np.uint64(index + 1)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.float64(z >> np.uint64(11)) / 9007199254740992.0


@counting_nothing
def pick(logits, choices, sample):
    """The best allowed slot, or (sample in [0, 1)) one drawn with the softmax's probabilities."""
    best = -1
    for slot in range(len(logits)):
        if (choices >> slot) & 1 and (best < 0 or logits[slot] > logits[best]):
            best = slot
    if sample < 0.0:
        return best
    total = 0.0
    for slot in range(len(logits)):
        if (choices >> slot) & 1:
            total += np.exp(np.float64(logits[slot] - logits[best]))
    left = sample * total
    for slot in range(len(logits)):
        if (choices >> slot) & 1:
            left -= np.exp(np.float64(logits[slot] - logits[best]))
            if left < 0.0:
                return slot
    return best


@counting_nothing
def rule(p, s, decider):
    """The choice of one of the rules at the current decision."""
    rank, choices = s.counts[RANK], s.counts[CHOICES]
    wait = 3 * p.local_stages.shape[1]
    planned = s.plan_cursor[rank]
    if decider == REPLAY:
        if (choices >> p.slots[planned]) & 1:
            return p.slots[planned]
        if (choices >> wait) & 1:
            return wait
    best, best_key = wait, np.int64(1) << 62
    for slot in range(wait):
        if (choices >> slot) & 1:
            stage, kind = p.local_stages[rank, slot // 3], slot % 3
            i = p.actions[stage * 3 + kind, s.cursor[stage * 3 + kind]]
            key = np.int64(i)
            if decider == GREEDY:
                preference = np.int64(0 if kind == I else 1 if kind == F else 2)
                key = preference * len(p.ranks) + p.microbatches[i]
                key = key * len(p.actions) - stage
            if key < best_key:
                best, best_key = slot, key
    return best


@numba.njit(cache=True, nogil=True)
def rollout(p, busy, decider, weights, stay, seeds, ends, peaks, bounds, decisions):
    """Plays whole episodes: (episodes, n) realised times in, ends and peak memory out. `stay` is added to the
    logit of what the plan does next."""
    states = new_states(p, 1)
    s = one_state(states, 0)
    observation = np.zeros((p.local_stages.shape[1], NUM_FEATURES), np.float32)
    hidden, other, row = scratch(weights)
    logits = np.empty(3 * p.local_stages.shape[1] + 1, np.float32)
    for e in range(len(busy)):
        reset(p, s, busy[e])
        bounds[e] = s.numbers[POTENTIAL]
        while s.counts[LEFT] > 0:
            if decider >= REPLAY:
                slot = rule(p, s, decider)
            else:
                observe(p, s, busy[e], observation)
                network(weights, observation, num_local(p, s), hidden, other, row, logits)
                logits[rule(p, s, REPLAY)] += stay
                sample = uniform(seeds[e], s.counts[DECISIONS]) if decider == SAMPLE else -1.0
                slot = pick(logits, s.counts[CHOICES], sample)
            step(p, s, busy[e], slot)
        ends[e] = s.ends
        peaks[e] = s.peak
        decisions[e] = s.counts[DECISIONS] if s.counts[LEFT] == 0 else -1


@numba.njit(cache=True, nogil=True)
def record(
    p, busy, decider, weights, seeds, observations, choices, slots, rewards, makespans, lengths
):
    """Plays whole episodes and keeps every decision: what was seen, could be chosen, was chosen, and the
    reward. The buffers have room for `2 n` decisions an episode."""
    states = new_states(p, 1)
    s = one_state(states, 0)
    hidden, other, row = scratch(weights)
    logits = np.empty(3 * p.local_stages.shape[1] + 1, np.float32)
    for e in range(len(busy)):
        reset(p, s, busy[e])
        t = 0
        while s.counts[LEFT] > 0:
            observe(p, s, busy[e], observations[e, t])
            if decider >= REPLAY:
                slot = rule(p, s, decider)
            else:
                network(weights, observations[e, t], num_local(p, s), hidden, other, row, logits)
                sample = uniform(seeds[e], s.counts[DECISIONS]) if decider == SAMPLE else -1.0
                slot = pick(logits, s.counts[CHOICES], sample)
            choices[e, t] = s.counts[CHOICES]
            slots[e, t] = slot
            step(p, s, busy[e], slot)
            rewards[e, t] = reward(p, s)
            t += 1
        makespans[e] = s.numbers[MAKESPAN]
        lengths[e] = t if s.counts[LEFT] == 0 else -1


@numba.njit(cache=True, nogil=True)
def compare(p, busy, weights, share, seeds, observations, choices, slots, outcomes, ends, lengths):
    """Plays sampled episodes; at a share of the decisions every choice is tried: from there the network's best
    is played to the end, under the same times. `outcomes` has the makespans, (episodes, room, slots), `ends`
    those of the sampled episodes. More than `room` decisions of an episode are not tried."""
    states = new_states(p, 2)
    s, tried = one_state(states, 0), one_state(states, 1)
    observation = np.zeros((p.local_stages.shape[1], NUM_FEATURES), np.float32)
    hidden, other, row = scratch(weights)
    logits = np.empty(3 * p.local_stages.shape[1] + 1, np.float32)
    for e in range(len(busy)):
        reset(p, s, busy[e])
        t = 0
        while s.counts[LEFT] > 0:
            count, options = 2 * s.counts[DECISIONS], s.counts[CHOICES]
            observe(p, s, busy[e], observation)
            network(weights, observation, num_local(p, s), hidden, other, row, logits)
            slot = pick(logits, options, uniform(seeds[e], count))
            if t < observations.shape[1] and uniform(seeds[e], count + 1) < share:
                observations[e, t] = observation
                choices[e, t] = options
                slots[e, t] = slot
                for choice in range(len(logits)):
                    outcomes[e, t, choice] = 0.0
                    if (options >> choice) & 1:
                        copy_state(s, tried)
                        step(p, tried, busy[e], choice)
                        while tried.counts[LEFT] > 0:
                            observe(p, tried, busy[e], observation)
                            network(
                                weights,
                                observation,
                                num_local(p, tried),
                                hidden,
                                other,
                                row,
                                logits,
                            )
                            step(p, tried, busy[e], pick(logits, tried.counts[CHOICES], -1.0))
                        outcomes[e, t, choice] = tried.numbers[MAKESPAN]
                t += 1
            step(p, s, busy[e], slot)
        ends[e] = s.numbers[MAKESPAN]
        lengths[e] = t if s.counts[LEFT] == 0 else -1


@counting_nothing
def copy_state(s, t):
    """Makes t an equal episode under way."""
    copy(s.cursor, t.cursor)
    copy(s.arrived, t.arrived)
    copy(s.ready, t.ready)
    copy(s.ends, t.ends)
    copy(s.plan_cursor, t.plan_cursor)
    copy(s.declined, t.declined)
    copy(s.free_at, t.free_at)
    copy(s.memory, t.memory)
    copy(s.peak, t.peak)
    copy(s.ratio, t.ratio)
    copy(s.spread, t.spread)
    copy(s.wake, t.wake)
    copy(s.tree, t.tree)
    for rank in range(len(s.work)):
        copy(s.work[rank], t.work[rank])
        copy(s.rest[rank], t.rest[rank])
    copy(s.head, t.head)
    copy(s.chain, t.chain)
    copy(s.numbers, t.numbers)
    copy(s.counts, t.counts)


@counting_nothing
def copy(a, b):
    """Copies a vector (a slice's assignment allocates)."""
    for i in range(len(a)):
        b[i] = a[i]


@counting_nothing
def num_local(p, s):
    """Stages of the deciding rank."""
    stages = p.local_stages[s.counts[RANK]]
    count = 0
    while count < len(stages) and stages[count] >= 0:
        count += 1
    return count


@numba.njit(cache=True, nogil=True)
def scratch(weights):
    """Buffers of the network."""
    return (
        np.empty(weights[0].shape[1], np.float32),
        np.empty(weights[2].shape[1], np.float32),
        np.empty(weights[4].shape[1], np.float32),
    )


@numba.njit(cache=True, nogil=True)
def step_batch(p, s, busy, slots, observations, rewards):
    """One step of every episode of a batch; slot -1 starts the episode.

    An illegal slot is replaced by the first legal one.
    """
    for e in range(len(busy)):
        one = one_state(s, e)
        slot = slots[e]
        rewards[e] = 0.0
        if slot == -1:
            reset(p, one, busy[e])
        else:
            if not (one.counts[CHOICES] >> slot) & 1:
                slot = 0
                while not (one.counts[CHOICES] >> slot) & 1:
                    slot += 1
            step(p, one, busy[e], slot)
            rewards[e] = reward(p, one)
        if one.counts[LEFT] > 0:
            observe(p, one, busy[e], observations[e])
        else:
            observations[e] = 0.0


@numba.njit(cache=True, nogil=True)
def decide_locally(
    p, s, weights, stay, busy, rank, now, timed_out, observation, hidden, other, row, logits
):
    """The action that a rank of a real run is to start now, -1 to wait. Its state has its own part only:
    `busy` and `ends` of its own actions and of those behind the messages that have come."""
    if s.wake[rank] > now and not (timed_out and s.declined[rank]):
        return -1
    s.numbers[NOW] = now
    s.counts[STALLED] = timed_out
    only = ask(p, s, rank)
    if only >= 0:
        return only
    observe(p, s, busy, observation)
    network(weights, observation, num_local(p, s), hidden, other, row, logits)
    logits[rule(p, s, REPLAY)] += stay
    return chosen(p, s, pick(logits, s.counts[CHOICES], -1.0))


@counting_nothing
def end_locally(p, s, busy, i, began, realised):
    """An action of a rank of a real run has ended."""
    s.numbers[NOW] = began
    busy[i] = realised
    start(p, s, busy, i)


@counting_nothing
def arrive_locally(p, s, busy, i, time, realised):
    """What action i waits for from another rank has come; that took `realised` to do. Such inputs have no lag
    here: they end when they arrive."""
    for slot in range(p.inputs.shape[1]):
        j = p.inputs[i, slot]
        if j < 0:
            break
        if p.ranks[j] != p.ranks[i]:
            s.ends[j] = time
            busy[j] = realised
    stream = p.streams[i]
    if p.microbatches[i] == s.cursor[stream]:
        s.ready[stream] = ready_time(p, s.ends, i)
        refresh(p, s, p.ranks[i])


@counting_nothing
def begin_locally(p, s, rank):
    """A step of a rank of a real run begins."""
    clear(p, s)
    refresh(p, s, rank)


@numba.njit(cache=True, nogil=True)
def lock_step(p, busy, starts):
    """The paper's zero-bubble heuristic: in each round every idle rank starts what it can, I before F before
    W; then the clock goes to the latest end among all that run. Gives the makespan; fills `starts`."""
    states = new_states(p, 1)
    s = one_state(states, 0)
    num_ranks, num_microbatches = len(p.limits), p.actions.shape[1]
    reset(p, s, busy)
    s.cursor[:] = 0
    s.ends[:] = np.inf
    s.memory[:] = 0.0
    left, now = len(p.ranks), 0.0
    while left:
        latest = now
        begun = 0
        for rank in range(num_ranks):
            best, best_key = -1, np.int64(1) << 62
            for v in range(p.local_stages.shape[1]):
                stage = p.local_stages[rank, v]
                for kind in range(3):
                    stream = stage * 3 + kind
                    if stage < 0 or s.cursor[stream] == num_microbatches:
                        continue
                    i = p.actions[stream, s.cursor[stream]]
                    if ready_time(p, s.ends, i) > now:
                        continue
                    if s.memory[rank] + p.allocated[i] > p.limits[rank] + 1e-9:
                        continue
                    key = np.int64(0 if kind == I else 1 if kind == F else 2) * len(p.ranks) + i
                    if key < best_key:
                        best, best_key = i, key
            if best >= 0:
                starts[best] = now
                s.ends[best] = now + busy[best]
                s.cursor[p.streams[best]] += 1
                s.memory[rank] += p.allocated[best] - p.freed[best]
                latest = max(latest, s.ends[best])
                begun += 1
        if begun == 0:
            return np.inf
        left -= begun
        now = latest
    return now
