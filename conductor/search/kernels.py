"""Compiled local search on orders: moves, incremental evaluation, simulated annealing.

A rank's order is an interleaving of its streams (one stage, one kind). Each stream keeps its own
order, so a move shifts one token of a stream past others. Positions live in `row`: every rank's
actions between a front sentinel (id `n`) and an end sentinel (id `n + 1 + rank`), so that
neighbours need no bounds check.

A move edits one window of one rank. Only the actions between the window's ends in the topological
order can change place in it. With one draw, their new ends (from the front) and tails (to the back)
give the longest path through the window, which alone decides whether a makespan above the present
one is accepted. With many draws, new ends go on to whatever they change, all draws at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

CLEAN, DIRTY, IN_TRIAL = 0, 1, 2
"""Stamps of actions: nothing to do, an input changed, new ends in `trial`."""

REFRESH = 32
"""Proposals after which another critical path is drawn."""

REACH = 24
"""Farthest that a token is moved at once."""

REPAIR_REACH = 40
"""How far behind a violation of the memory limit an action that frees memory is looked for."""

_uncounted = numba.njit(cache=True, _nrt=False)  # type: ignore[call-overload]  # private
"""Without reference counts: nothing here allocates, and counting thirty arrays in and out of every call takes
longer than what most of the calls do."""

_SHIFT_A, _SHIFT_B, _SHIFT_C = np.uint64(13), np.uint64(7), np.uint64(17)
_TO_MANTISSA = np.uint64(11)
_UNIT = 2.0**-53


class Problem(NamedTuple):
    """What does not change during a search: n actions and, behind them, the sentinels.

    Attributes:
        first: (ranks,) row index of each rank's first action.
        last: (ranks,) row index of each rank's last action.
        ranks: (n,) rank of each action.
        streams: (n + 1 + ranks,); -1 for sentinels.
        busy: (n + 1 + ranks, draws), ms; 0 for sentinels.
        inputs: (n, width); n for none. `lags`, `outputs`, `output_lags` alike.
        allocated: (n,) memory taken at the start. `freed` alike, at the end.
        limits: (ranks,) of memory.
        is_span: minimises the longest span of a rank, not the makespan.
        tail_share: 0 minimises the mean over draws, else the quantile 1 - share.
    """

    first: np.ndarray
    last: np.ndarray
    ranks: np.ndarray
    streams: np.ndarray
    busy: np.ndarray
    inputs: np.ndarray
    lags: np.ndarray
    outputs: np.ndarray
    output_lags: np.ndarray
    allocated: np.ndarray
    freed: np.ndarray
    limits: np.ndarray
    is_span: bool
    tail_share: float


class State(NamedTuple):
    """An order and what is known about it; every array is changed in place.

    Attributes:
        row: (n + 2 ranks,) actions and sentinels.
        place: (n,) row index of each action.
        order: (n,) a topological order.
        position: (n + 1 + ranks,) index in `order`; -1 for sentinels.
        memory: (n + 2 ranks,) held behind each row index.
        end: (n + 1 + ranks, draws), ms; 0 for sentinels.
        tail: (n + 1 + ranks,), ms; longest way from an action's start to the end. One draw only.
        path: (n,) a critical path, from its end.
        rng: (1,) uint64.
        saved_row: what stood in the window. The arrays from here on are scratch.
        saved_end: the region's old ends.
        saved_tail: the region's old tails.
        queue: the region in its new order.
        waiting: inputs in the region still to come.
        stamp: (n + 1 + ranks,) CLEAN, DIRTY or IN_TRIAL.
        trial: (n + 1 + ranks, draws) new ends.
        values: (draws,) makespans or spans.
    """

    row: np.ndarray
    place: np.ndarray
    order: np.ndarray
    position: np.ndarray
    memory: np.ndarray
    end: np.ndarray
    tail: np.ndarray
    path: np.ndarray
    rng: np.ndarray
    saved_row: np.ndarray
    saved_end: np.ndarray
    saved_tail: np.ndarray
    queue: np.ndarray
    waiting: np.ndarray
    stamp: np.ndarray
    trial: np.ndarray
    values: np.ndarray


@_uncounted
def _random(rng):
    x = rng[0]
    x ^= x << _SHIFT_A
    x ^= x >> _SHIFT_B
    x ^= x << _SHIFT_C
    rng[0] = x
    return (x >> _TO_MANTISSA) * _UNIT


@_uncounted
def _sort_region(problem, state, low, high):
    """Orders the actions at positions low..high topologically into `queue`; False is a deadlock."""
    row, place, order, position = state.row, state.place, state.order, state.position
    queue, waiting = state.queue, state.waiting
    inputs, outputs = problem.inputs, problem.outputs
    width = inputs.shape[1]
    count = 0
    for t in range(low, high + 1):
        v = order[t]
        needs = 0
        for c in range(width):
            if low <= position[inputs[v, c]] <= high:
                needs += 1
        if low <= position[row[place[v] - 1]] <= high:
            needs += 1
        waiting[v] = needs
        if needs == 0:
            queue[count] = v
            count += 1
    k = 0
    while k < count:
        v = queue[k]
        k += 1
        u = row[place[v] + 1]
        if low <= position[u] <= high:
            waiting[u] -= 1
            if waiting[u] == 0:
                queue[count] = u
                count += 1
        for c in range(width):
            u = outputs[v, c]
            if low <= position[u] <= high:
                waiting[u] -= 1
                if waiting[u] == 0:
                    queue[count] = u
                    count += 1
    return count == high - low + 1


@_uncounted
def _end_of(problem, state, v):
    end = state.end
    start = end[state.row[state.place[v] - 1], 0]
    for c in range(problem.inputs.shape[1]):
        arrival = end[problem.inputs[v, c], 0] + problem.lags[v, c]
        if arrival > start:
            start = arrival
    return start + problem.busy[v, 0]


@_uncounted
def _tail_of(problem, state, v):
    tail = state.tail
    longest = tail[state.row[state.place[v] + 1]]
    for c in range(problem.outputs.shape[1]):
        way = tail[problem.outputs[v, c]] + problem.output_lags[v, c]
        if way > longest:
            longest = way
    return longest + problem.busy[v, 0]


@_uncounted
def _longest_through(problem, state, low, high, threshold):
    """New ends and tails of the region in `queue`; the longest path through it.

    Stops early above the threshold, with everything restored.
    """
    queue, end, tail = state.queue, state.end, state.tail
    saved_end, saved_tail = state.saved_end, state.saved_tail
    size = high - low + 1
    for k in range(size):
        v = queue[k]
        saved_end[k] = end[v, 0]
        end[v, 0] = _end_of(problem, state, v)
    longest = 0.0
    for k in range(size - 1, -1, -1):
        v = queue[k]
        saved_tail[k] = tail[v]
        tail[v] = _tail_of(problem, state, v)
        way = end[v, 0] - problem.busy[v, 0] + tail[v]
        if way > longest:
            longest = way
            if way > threshold:
                for m in range(k, size):
                    tail[queue[m]] = saved_tail[m]
                for m in range(size):
                    end[queue[m], 0] = saved_end[m]
                return longest
    return longest


@_uncounted
def _place_region(state, low, high):
    for k in range(high - low + 1):
        v = state.queue[k]
        state.order[low + k] = v
        state.position[v] = low + k


@_uncounted
def _propagate(problem, state, low, high):
    """Carries the region's new ends and tails on to everything they change."""
    row, place, order, position = state.row, state.place, state.order, state.position
    end, tail, stamp = state.end, state.tail, state.stamp
    width = problem.inputs.shape[1]
    n = len(order)
    num_dirty = 0
    for t in range(low, n):
        v = order[t]
        if t > high:
            if num_dirty == 0:
                break
            if stamp[v] == CLEAN:
                continue
            stamp[v] = CLEAN
            num_dirty -= 1
            new = _end_of(problem, state, v)
            if new == end[v, 0]:
                continue
            end[v, 0] = new
        u = row[place[v] + 1]
        if position[u] > high and stamp[u] == CLEAN:
            stamp[u] = DIRTY
            num_dirty += 1
        for c in range(width):
            u = problem.outputs[v, c]
            if position[u] > high and stamp[u] == CLEAN:
                stamp[u] = DIRTY
                num_dirty += 1
    num_dirty = 0
    for t in range(high, -1, -1):
        v = order[t]
        if t < low:
            if num_dirty == 0:
                break
            if stamp[v] == CLEAN:
                continue
            stamp[v] = CLEAN
            num_dirty -= 1
            new = _tail_of(problem, state, v)
            if new == tail[v]:
                continue
            tail[v] = new
        u = row[place[v] - 1]
        if 0 <= position[u] < low and stamp[u] == CLEAN:
            stamp[u] = DIRTY
            num_dirty += 1
        for c in range(width):
            u = problem.inputs[v, c]
            if 0 <= position[u] < low and stamp[u] == CLEAN:
                stamp[u] = DIRTY
                num_dirty += 1


@_uncounted
def _summary(values, tail_share):
    if len(values) == 1:
        return values[0]
    if tail_share == 0.0:
        total = 0.0
        for value in values:
            total += value
        return total / len(values)
    at = (len(values) - 1) * (1.0 - tail_share)
    low = int(at)
    for k in range(len(values) - 1, low - 1, -1):
        # the largest of the first k + 1 to place k
        most = k
        for d in range(k):
            if values[d] > values[most]:
                most = d
        values[k], values[most] = values[most], values[k]
    high = min(low + 1, len(values) - 1)
    return values[low] + (at - low) * (values[high] - values[low])


@_uncounted
def _value(problem, state):
    """The objective, from `end` or, for what is stamped, from `trial`."""
    values = state.values
    for d in range(len(values)):
        values[d] = 0.0
    for rank in range(len(problem.first)):
        head, foot = state.row[problem.first[rank]], state.row[problem.last[rank]]
        heads = state.trial if state.stamp[head] == IN_TRIAL else state.end
        feet = state.trial if state.stamp[foot] == IN_TRIAL else state.end
        for d in range(len(values)):
            way = feet[foot, d]
            if problem.is_span:
                way -= heads[head, d] - problem.busy[head, d]
            values[d] = max(values[d], way)
    return _summary(values, problem.tail_share)


@numba.njit(cache=True)
def evaluate(problem, state):
    """Everything in `state` from `row` and any permutation in `order`.

    Returns:
        The objective; inf where the order deadlocks or needs too much memory.
    """
    n = len(state.place)
    num_draws = problem.busy.shape[1]
    state.position[:] = -1
    state.stamp[:] = CLEAN
    for rank in range(len(problem.first)):
        first, last = problem.first[rank], problem.last[rank]
        if _first_excess(problem, state, rank, first, last) >= 0:
            return np.inf
        _settle(problem, state, rank, first, last)
    for k in range(n):
        state.position[state.order[k]] = k
    if not _sort_region(problem, state, 0, n - 1):
        return np.inf
    _place_region(state, 0, n - 1)
    first_starts = np.empty(n)
    for k in range(n):
        v = state.order[k]
        before = state.row[state.place[v] - 1]
        for d in range(num_draws - 1, -1, -1):
            start = state.end[before, d]
            for c in range(problem.inputs.shape[1]):
                start = max(start, state.end[problem.inputs[v, c], d] + problem.lags[v, c])
            state.end[v, d] = start + problem.busy[v, d]
        first_starts[k] = start
    # by time (of the first draw), windows span few actions
    state.queue[:] = state.order[np.argsort(first_starts, kind="mergesort")]
    _place_region(state, 0, n - 1)
    if num_draws == 1:
        _find_tails(problem, state)
    return _value(problem, state)


@_uncounted
def _find_tails(problem, state):
    """Tails of all actions; a rank's span counts from its own start, so its tails end there."""
    n = len(state.place)
    state.tail[n] = -np.inf
    for rank in range(len(problem.first)):
        state.tail[n + 1 + rank] = -_origin(problem, state, rank)
    for k in range(n - 1, -1, -1):
        v = state.order[k]
        state.tail[v] = _tail_of(problem, state, v)


@_uncounted
def _origin(problem, state, rank):
    """What the objective counts from on a rank: its first start for spans, else 0."""
    head = state.row[problem.first[rank]]
    return state.end[head, 0] - problem.busy[head, 0] if problem.is_span else 0.0


@_uncounted
def _find_path(problem, state, d):
    """A critical path of draw d into `path`, from its end; ties at random. Gives its length."""
    row, place, end = state.row, state.place, state.end
    n = len(place)
    latest = -1.0
    v = n
    for rank in range(len(problem.first)):
        head, foot = row[problem.first[rank]], row[problem.last[rank]]
        way = end[foot, d]
        if problem.is_span:
            way -= end[head, d] - problem.busy[head, d]
        if way > latest:
            latest = way
            v = foot
    length = 0
    slack = 1e-9 * latest
    while v < n:
        state.path[length] = v
        length += 1
        start = end[v, d] - problem.busy[v, d]
        found = n
        count = 0
        u = row[place[v] - 1]
        if u < n and end[u, d] >= start - slack:
            found = u
            count = 1
        for c in range(problem.inputs.shape[1]):
            u = problem.inputs[v, c]
            if u < n and end[u, d] + problem.lags[v, c] >= start - slack:
                count += 1
                if _random(state.rng) * count < 1.0:
                    found = u
        v = found
    return length


@_uncounted
def _shift(problem, state, i, j):
    """Moves the token at row index i to j; tokens of one stream keep their order."""
    row, streams = state.row, problem.streams
    carried = row[i]
    stream = streams[carried]
    step = 1 if j > i else -1
    t = i
    while t != j:
        v = row[t + step]
        if streams[v] == stream:
            row[t] = carried
            carried = v
        else:
            row[t] = v
        t += step
    row[j] = carried


@_uncounted
def _first_excess(problem, state, rank, i, j):
    """The first row index in i..j where memory exceeds the limit, or -1."""
    held = state.memory[i - 1] if i > problem.first[rank] else 0.0
    for t in range(i, j + 1):
        v = state.row[t]
        held += problem.allocated[v]
        if held > problem.limits[rank]:
            return t
        held -= problem.freed[v]
    return -1


@_uncounted
def _settle(problem, state, rank, i, j):
    """Places and memory of row indices i..j."""
    held = state.memory[i - 1] if i > problem.first[rank] else 0.0
    for t in range(i, j + 1):
        v = state.row[t]
        state.place[v] = t
        held += problem.allocated[v] - problem.freed[v]
        state.memory[t] = held


@_uncounted
def _restore(state, i, j):
    for t in range(i, j + 1):
        v = state.saved_row[t]
        state.row[t] = v
        state.place[v] = t


@_uncounted
def _try_draws(problem, state, low, high, threshold):
    """All draws: new ends behind the region's front, into `trial`; the objective."""
    row, place, order, position = state.row, state.place, state.order, state.position
    end, trial, stamp = state.end, state.trial, state.stamp
    num_draws = problem.busy.shape[1]
    width = problem.inputs.shape[1]
    n = len(order)
    start = state.saved_end
    num_dirty = 0
    stop = n
    for t in range(low, n):
        if t <= high:
            v = state.queue[t - low]
        else:
            if num_dirty == 0:
                stop = t
                break
            v = order[t]
            if stamp[v] != DIRTY:
                continue
            num_dirty -= 1
        u = row[place[v] - 1]
        source = trial if stamp[u] == IN_TRIAL else end
        for d in range(num_draws):
            start[d] = source[u, d]
        for c in range(width):
            u = problem.inputs[v, c]
            if u == n:
                continue
            lag = problem.lags[v, c]
            source = trial if stamp[u] == IN_TRIAL else end
            for d in range(num_draws):
                start[d] = max(start[d], source[u, d] + lag)
        changed = False
        for d in range(num_draws):
            new = start[d] + problem.busy[v, d]
            trial[v, d] = new
            changed |= new != end[v, d]
        stamp[v] = IN_TRIAL if changed else CLEAN
        if not changed and t > high:
            continue
        u = row[place[v] + 1]
        if position[u] > high and stamp[u] == CLEAN:
            stamp[u] = DIRTY
            num_dirty += 1
        for c in range(width):
            u = problem.outputs[v, c]
            if position[u] > high and stamp[u] == CLEAN:
                stamp[u] = DIRTY
                num_dirty += 1
    value = _value(problem, state)
    accepted = value <= threshold
    for t in range(low, stop):
        v = state.queue[t - low] if t <= high else order[t]
        if stamp[v] == IN_TRIAL and accepted:
            for d in range(num_draws):
                end[v, d] = trial[v, d]
        stamp[v] = CLEAN
    return value


@_uncounted
def _attempt(problem, state, rank, i, j, threshold):
    """Judges the order whose window i..j of `row` was edited (`saved_row` has the old one).

    Returns:
        The new value where it is accepted; else, with everything restored, inf, or nan for a deadlock.
    """
    _settle(problem, state, rank, i, j)
    low, high = state.position[state.saved_row[i]], state.position[state.saved_row[j]]
    verdict = np.nan
    if _sort_region(problem, state, low, high):
        verdict = np.inf
        if problem.busy.shape[1] > 1:
            value = _try_draws(problem, state, low, high, threshold)
            if value <= threshold:
                _place_region(state, low, high)
                return value
        elif _longest_through(problem, state, low, high, threshold) <= threshold:
            _place_region(state, low, high)
            _propagate(problem, state, low, high)
            for other in range(len(problem.first)):
                if state.tail[len(state.place) + 1 + other] != -_origin(problem, state, other):
                    _find_tails(problem, state)
                    break
            return _value(problem, state)
    _restore(state, i, j)
    _settle(problem, state, rank, i, j)
    return verdict


@_uncounted
def _propose(problem, state, path_length):
    """Edits a window of `row` and saves what stood there.

    Mostly a token of the critical path goes to a place nearby. Where that takes too much memory,
    the next action that frees some is pulled in front.

    Returns:
        rank, first and last row index of the window; rank -1 where nothing was changed.
    """
    row, rng = state.row, state.rng
    if _random(rng) < 0.9:
        v = state.path[int(_random(rng) * path_length)]
    else:
        v = np.int32(_random(rng) * len(state.place))
    rank = problem.ranks[v]
    first, last = problem.first[rank], problem.last[rank]
    i = state.place[v]
    distance = 1
    if _random(rng) < 0.6:
        distance += int(REACH * _random(rng) ** 3)
    j = min(i + distance, last) if _random(rng) < 0.5 else max(i - distance, first)
    low, high = min(i, j), max(i, j)
    if low == high or (high - low == 1 and problem.streams[row[i]] == problem.streams[row[j]]):
        return -1, low, high
    for t in range(low, high + 1):
        state.saved_row[t] = row[t]
    _shift(problem, state, i, j)
    while True:
        excess = _first_excess(problem, state, rank, low, high)
        if excess < 0:
            return rank, low, high
        t = excess + 1
        while t <= min(last, excess + REPAIR_REACH) and problem.freed[row[t]] == 0.0:
            t += 1
        if t > min(last, excess + REPAIR_REACH):
            for k in range(low, high + 1):
                row[k] = state.saved_row[k]
            return -1, low, high
        if t > high:
            for k in range(high + 1, t + 1):
                state.saved_row[k] = row[k]
            high = t
        _shift(problem, state, t, excess)


@_uncounted
def anneal(problem, state, best_row, values, progress, evaluations, length, hot, cold, target):
    """Simulated annealing: a part of a round. However a round is cut, it gives the same orders.

    Args:
        problem: what is searched.
        state: as `evaluate` or an earlier part left it.
        best_row: the best `row` so far; replaced when a better one is found.
        values: [objective of the present order, of `best_row`]; changed in place.
        progress: [orders evaluated in this round, length of `state.path` (0: to be drawn),
            proposals made from it]; changed in place, zeros at the start of a round.
        evaluations: of this part.
        length: evaluations of the whole round.
        hot: temperature at the start of the round.
        cold: temperature at its end.
        target: stops when `best_row` is as good as this.

    Returns:
        Orders evaluated; fewer than asked where the target is reached or no move is left.
    """
    done = 0
    fruitless = 0
    while done < evaluations and values[1] > target and fruitless < 10_000:
        if progress[1] == 0 or progress[2] >= max(REFRESH, progress[1] // 8):
            progress[1] = _find_path(
                problem, state, int(_random(state.rng) * problem.busy.shape[1])
            )
            progress[2] = 0
        progress[2] += 1
        fruitless += 1
        rank, low, high = _propose(problem, state, progress[1])
        if rank < 0:
            continue
        temperature = hot * (cold / hot) ** (progress[0] / length)
        done += 1
        progress[0] += 1
        threshold = values[0] - temperature * np.log(1.0 - _random(state.rng))
        value = _attempt(problem, state, rank, low, high, threshold)
        if not np.isnan(value):
            fruitless = 0
        if value < np.inf:
            values[0] = value
            progress[1] = 0
            if value < values[1] - 1e-9:
                values[1] = value
                for t in range(len(best_row)):
                    best_row[t] = state.row[t]
    return done
