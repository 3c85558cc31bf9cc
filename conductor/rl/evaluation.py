"""A policy against every baseline on fresh draws, the same for all."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from conductor.errors import DoesNotFitError
from conductor.ir.schedule import FloatArray, Int64Array
from conductor.rl import kernels
from conductor.rl.instance import Instance
from conductor.rl.play import Decider, Weights, play, record
from conductor.schedules.registry import build
from conductor.simulator.bounds import realised_bound
from conductor.simulator.program import encode
from conductor.simulator.simulate import simulate
from conductor.variation import Variation

STATIC = ("1f1b", "zb-1p", "zb-2p", "zb-v")
READY_FIRST, GREEDY, LOCK_STEP, POLICY = "ready-first", "greedy", "lock-step zbpp", "policy"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """Makespans on fresh draws.

    Attributes:
        makespan_ms: by name, each float64 of shape (draws,). `ready-first` is that execution of the static
            schedule with the smallest mean among those on the policy's placement; `greedy` starts what it
            can, I before F before W; `lock-step zbpp` is the paper's heuristic with a barrier after each
            round. Draws are paired among all on the same number of stages.
        bound_ms: float64, shape (draws,); per-rank bound under the realised durations.
        num_decisions: int64, shape (draws,); of the policy.
        left_out: why a baseline is not among them.
        elsewhere: names of those on another placement, whose draws are not paired and whose bound is another.
    """

    makespan_ms: dict[str, FloatArray]
    bound_ms: FloatArray
    num_decisions: Int64Array
    left_out: dict[str, str]
    elsewhere: frozenset[str]

    def mean(self, name: str) -> float:
        """Mean makespan."""
        return float(self.makespan_ms[name].mean())

    def ci95(self, name: str, minus: str | None = None) -> tuple[float, float]:
        """95 % interval of the mean makespan, or of the mean paired difference to another row."""
        values = self.makespan_ms[name]
        if minus is not None:
            values = values - self.makespan_ms[minus]
        return interval95(values)


def interval95(values: FloatArray) -> tuple[float, float]:
    """95 % interval of a mean; the value itself where there is only one."""
    half = 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return float(values.mean()) - half, float(values.mean()) + half


def evaluate(
    instance: Instance,
    weights: Weights,
    variation: Variation,
    *,
    draws: int = 1000,
    seed: int,
    threads: int = 1,
) -> Evaluation:
    """Plays the policy and all baselines.

    Args:
        instance: the pipeline and the policy's plan.
        weights: of the policy.
        variation: what realised durations are drawn from.
        draws: how many.
        seed: of the draws; a training with this seed has seen none of them.
        threads: for the episodes.
    """
    spec = instance.spec
    makespans: dict[str, FloatArray] = {}
    left_out: dict[str, str] = {}
    elsewhere = set()
    best = instance.plan
    for name in STATIC:
        try:
            schedule = build(name, spec)
        except DoesNotFitError as error:
            left_out[name] = str(error)
            continue
        durations = variation.sample(encode(spec, schedule), draws, _fresh(seed))
        makespans[name] = simulate(spec, schedule, durations).makespan_ms
        if schedule.stage_ranks != spec.stage_ranks:
            elsewhere.add(name)
        elif best.name not in makespans or makespans[name].mean() < makespans[best.name].mean():
            best = schedule
    durations = variation.sample(encode(spec, best), draws, _fresh(seed))
    makespans[READY_FIRST] = simulate(
        spec, best, durations, execution="ready-first"
    ).makespan_ms  # fmt: skip
    durations = variation.sample(instance.program, draws, _fresh(seed))
    makespans[GREEDY] = play(instance, durations, Decider.GREEDY, threads=threads).makespan_ms
    if spec.is_rank_level:
        makespans[LOCK_STEP] = lock_step_ends(instance, durations).max(axis=1)
    played = play(instance, durations, Decider.NETWORK, weights=weights, threads=threads)
    makespans[POLICY] = played.makespan_ms
    return Evaluation(
        makespan_ms=makespans,
        bound_ms=realised_bound(instance.program, durations),
        num_decisions=played.num_decisions,
        left_out=left_out,
        elsewhere=frozenset(elsewhere),
    )


def lock_step_ends(instance: Instance, durations_ms: FloatArray) -> FloatArray:
    """The paper's zero-bubble heuristic as its code runs it, one stage a rank.

    In each round every idle rank starts the first it can of I, F, W; then the clock goes to the latest end.

    Args:
        instance: one stage a rank.
        durations_ms: shape (draws, n) or (n,), program order.

    Returns:
        Ends, shape (draws, n).
    """
    busy = instance.program.busy_ms(durations_ms)
    starts = np.empty_like(busy)
    for draw in range(len(busy)):
        kernels.lock_step(instance.arrays, busy[draw], starts[draw])
    ends: FloatArray = starts + busy
    return ends


def policy_call_ms(
    instance: Instance, weights: Weights, durations_ms: FloatArray, *, calls: int = 2000
) -> FloatArray:
    """How long single decisions of the policy take, each called from Python, shape (calls,)."""
    decisions = record(instance, durations_ms, Decider.NETWORK, weights=weights)
    observations, choices = decisions.observations, decisions.choices
    count = observations.shape[1]
    kernels.decide(weights, observations[0], count, choices[0])  # compiled, and in the cache
    times = np.empty(calls)
    for call in range(calls):
        which = call % len(choices)
        begin = perf_counter()
        kernels.decide(weights, observations[which], count, choices[which])
        times[call] = 1e3 * (perf_counter() - begin)
    return times


def _fresh(seed: int) -> np.random.Generator:
    """The evaluation's draws; a training draws from streams 0 and 1 of its seed."""
    return np.random.default_rng([seed, 2])
