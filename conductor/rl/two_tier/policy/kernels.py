"""Compiled policy of both tiers: the learned scheduler's network with a head that scores lenders.

The state of the learned scheduler's environment (`conductor.rl.kernels.State`) is kept up by the event loop
with migration: an action is told to it when it has ended, so what a rank observes are its own counters, the
messages that have come and the plan, as in a real run. A rank whose running action may borrow is observed as
it was when it began that action, with that action as its only choice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from conductor.rl.kernels import (
    CHOICES,
    NOW,
    NUM_FEATURES,
    RANK,
    REPLAY,
    STALLED,
    Arrays,
    State,
    ask,
    chosen,
    clear,
    copy,
    counting_nothing,
    layer,
    network,
    new_states,
    num_local,
    observe,
    one_state,
    pick,
    refresh,
    rule,
    start,
    uniform,
)

NUM_OPTION_FEATURES = 16
"""What the lending head knows of an option beside the borrower's observation."""
EIGHTHS = 8
"""A lender is offered so many eighths of what can move."""
MAX_OPTIONS = 1 + 8 * EIGHTHS
"""Nobody, or one of the lenders looked at with at most so many eighths."""

ORDER, LEND = 0, 1
"""Kinds of decision."""
KIND, OPTION, COUNT, OWN = 0, 1, 2, 3
"""Indices of `Desk.forced`: the kind of the next decision that is forced (-1: none) and its option (-1: the
policy's own). Afterwards: its choices as bits, or how many options it had; what the plan does next, or which
option the policy likes best."""

_SMOOTHING = 0.3


class Policy(NamedTuple):
    """What has been learned, and how it is used here."""

    orders: bool
    """Whether it decides what a rank does next."""
    lends: bool
    """Whether it picks lenders."""
    stay: np.float32
    """Added to the score of what the plan does next."""
    weights: tuple[Any, ...]
    """Both shared layers and the order head, as `conductor.rl.play.Weights`."""
    from_trunk: np.ndarray
    """float32 (hidden, width): the lending head's first layer."""
    from_option: np.ndarray
    """float32 (NUM_OPTION_FEATURES, width)."""
    bias: np.ndarray
    """float32 (width,)."""
    last: np.ndarray
    """float32 (width,)."""
    lean: float
    """Score of a gain as long as a mean action: with a last layer of zeros the largest gain wins."""
    p: Arrays
    """The pipeline, with the links as they are and the plan by expected times."""


class Desk(NamedTuple):
    """Where the policy works: the observed state, and scratch."""

    policy: Policy
    s: State
    busy: np.ndarray
    """float64 (n,): realised times of what has ended, without the time that help saved or cost."""
    observation: np.ndarray
    hidden: np.ndarray
    other: np.ndarray
    row: np.ndarray
    logits: np.ndarray
    context: np.ndarray
    """float32 (width,): the borrower's part of the lending head's first layer."""
    inner: np.ndarray
    """float32 (width,)."""
    options: np.ndarray
    """float32 (MAX_OPTIONS, NUM_OPTION_FEATURES)."""
    scores: np.ndarray
    """float64 (MAX_OPTIONS,)."""
    seen: np.ndarray
    """`options` of the forced decision."""
    leads: np.ndarray
    """float64 (MAX_OPTIONS,): its scores without the network."""
    time_ms: np.ndarray
    """float64 (MAX_OPTIONS,): what is left of the action with each; equal scores go by that."""
    slot: np.ndarray
    """int64 (MAX_OPTIONS,): the candidate of each option."""
    cap: np.ndarray
    """int64 (MAX_OPTIONS,): the most parts that it may do."""
    forced: np.ndarray
    """int64 (4,)."""
    kept: np.ndarray
    """`observation` of the forced decision."""
    sample: np.ndarray
    """uint64 (2,): seed of sampled decisions, 0 for the best, and how many there were."""


@numba.njit(cache=True, nogil=True)
def make_desk(policy):
    """Buffers."""
    p = policy.p
    width = 3 * p.local_stages.shape[1] + 1
    weights = policy.weights
    return Desk(
        policy,
        one_state(new_states(p, 1), 0),
        np.zeros(len(p.ranks)),
        np.zeros((p.local_stages.shape[1], NUM_FEATURES), np.float32),
        np.zeros(weights[0].shape[1], np.float32),
        np.zeros(weights[2].shape[1], np.float32),
        np.zeros(weights[4].shape[1], np.float32),
        np.zeros(width, np.float32),
        np.zeros(len(policy.bias), np.float32),
        np.zeros(len(policy.bias), np.float32),
        np.zeros((MAX_OPTIONS, NUM_OPTION_FEATURES), np.float32),
        np.zeros(MAX_OPTIONS),
        np.zeros((MAX_OPTIONS, NUM_OPTION_FEATURES), np.float32),
        np.zeros(MAX_OPTIONS),
        np.zeros(MAX_OPTIONS),
        np.zeros(MAX_OPTIONS, np.int64),
        np.zeros(MAX_OPTIONS, np.int64),
        np.array([-1, 0, 0, 0], np.int64),
        np.zeros((p.local_stages.shape[1], NUM_FEATURES), np.float32),
        np.zeros(2, np.uint64),
    )


@counting_nothing
def begin_step(desk):
    """Before the first action."""
    p = desk.policy.p
    clear(p, desk.s)
    for rank in range(len(p.limits)):
        refresh(p, desk.s, rank)
    desk.forced[KIND] = -1
    desk.sample[1] = 0


@counting_nothing
def note_end(desk, rank, i, now, factor):
    """Action i has ended now; `factor` is its realised over expected time, had nobody helped."""
    p, s = desk.policy.p, desk.s
    s.numbers[NOW] = now
    ratio, spread = s.ratio[rank], s.spread[rank]
    desk.busy[i] = 0.0  # it ends now
    start(p, s, desk.busy, i)
    stream = p.streams[i]
    s.arrived[stream] = max(s.arrived[stream], s.cursor[stream])
    desk.busy[i] = factor * p.expected[i]
    if p.expected[i] > 0.0:
        s.ratio[rank] = ratio + _SMOOTHING * (factor - ratio)
        s.spread[rank] = spread + _SMOOTHING * (abs(factor - 1.0) - spread)


@counting_nothing
def next_action(desk, rank, now, timed_out, led, lead):
    """The action that a rank is to start now, -1 to wait; `conductor.rl.kernels.decide_locally` with a
    decision that may be forced or sampled. It is held to the plan or, if `led`, to the action `lead` (-1: to
    waiting), and a rank that has waited may be asked again at any time then."""
    p, s = desk.policy.p, desk.s
    if led and s.wake[rank] > now:
        s.declined[rank] = 0
        refresh(p, s, rank)
    if s.wake[rank] > now and not (timed_out and s.declined[rank]):
        return -1
    s.numbers[NOW] = now
    s.counts[STALLED] = timed_out
    only = ask(p, s, rank)
    if only >= 0:
        return only
    observe(p, s, desk.busy, desk.observation)
    network(
        desk.policy.weights, desk.observation, num_local(p, s), desk.hidden, desk.other, desk.row,
        desk.logits,
    )  # fmt: skip
    planned = rule(p, s, REPLAY)
    wait = len(desk.logits) - 1
    if led and lead >= 0 and (s.counts[CHOICES] >> p.slots[lead]) & 1:
        planned = p.slots[lead]
    elif led and (s.counts[CHOICES] >> wait) & 1:
        planned = wait
    desk.logits[planned] += desk.policy.stay
    if desk.forced[KIND] == ORDER:
        desk.forced[KIND] = -1
        desk.forced[COUNT] = s.counts[CHOICES]
        desk.forced[OWN] = planned
        keep(desk)
        if desk.forced[OPTION] >= 0:
            return chosen(p, s, desk.forced[OPTION])
    return chosen(p, s, pick(desk.logits, s.counts[CHOICES], luck(desk)))


@counting_nothing
def keep(desk):
    """The observation of the forced decision outlives the next one."""
    for v in range(len(desk.kept)):
        copy(desk.observation[v], desk.kept[v])


@counting_nothing
def luck(desk):
    """A number in [0, 1) for a sampled decision, -1 for the best."""
    if desk.sample[0] == 0:
        return -1.0
    desk.sample[1] += np.uint64(1)
    return uniform(desk.sample[0], np.int64(desk.sample[1]))


@counting_nothing
def look(desk, rank, i, now):
    """The borrower's part of the lending head's first layer, before its options are known."""
    p, s = desk.policy.p, desk.s
    s.numbers[NOW] = now
    s.counts[STALLED] = 0
    s.counts[RANK] = rank
    s.counts[CHOICES] = 1 << p.slots[i]
    observe(p, s, desk.busy, desk.observation)
    policy, v = desk.policy, p.slots[i] // 3
    weights = policy.weights
    layer(desk.observation[v], weights[0], weights[1][0], desk.hidden)
    for j in range(len(desk.hidden)):
        desk.hidden[j] = max(desk.hidden[j], np.float32(0.0))
    layer(desk.hidden, weights[2], weights[3][0], desk.other)
    for j in range(len(desk.other)):
        desk.other[j] = max(desk.other[j], np.float32(0.0))
    layer(desk.other, policy.from_trunk, policy.bias, desk.context)


@counting_nothing
def choose_option(desk, count):
    """The option of a lending decision to take, by its features and the scores without the network."""
    policy = desk.policy
    forced = desk.forced[KIND] == LEND
    if forced:
        desk.forced[KIND] = -1
        desk.forced[COUNT] = count
        keep(desk)
        for k in range(count):
            desk.leads[k] = desk.scores[k]
            for f in range(NUM_OPTION_FEATURES):
                desk.seen[k, f] = desk.options[k, f]
        if desk.forced[OPTION] >= 0:
            return desk.forced[OPTION]
    best = 0
    for k in range(1, count):
        layer(desk.options[k], policy.from_option, desk.context, desk.inner)
        score = desk.scores[k]
        for j in range(len(desk.inner)):
            if desk.inner[j] > 0.0:
                score += desk.inner[j] * policy.last[j]
        desk.scores[k] = score
        if score > desk.scores[best] or (
            score == desk.scores[best] and desk.time_ms[k] < desk.time_ms[best]
        ):
            best = k
    if forced:
        desk.forced[OWN] = best
    sample = luck(desk)
    if sample < 0.0:
        return best
    total = 0.0
    for k in range(count):
        total += np.exp(desk.scores[k] - desk.scores[best])
    left = sample * total
    for k in range(count):
        left -= np.exp(desk.scores[k] - desk.scores[best])
        if left < 0.0:
            return k
    return best
