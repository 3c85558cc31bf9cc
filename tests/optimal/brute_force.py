"""The optimum of a tiny spec by all orders, from the rules alone.

Every set of done actions is reached through every last action; of the ways to reach it only those are
dropped that are later in everything that can still matter. Full backwards are allowed, too.
"""

from __future__ import annotations

import numpy as np

from conductor.problem.spec import PipelineSpec

F, I, W = range(3)


def brute_force(
    spec: PipelineSpec, objective: str = "makespan", durations: np.ndarray | None = None
) -> float:
    """Least value over all orders; inf when none fits in memory.

    Args:
        spec: on its stages.
        objective: makespan or stage-span.
        durations: shape (3, stages, micro-batches) or None for the expected ones.
    """
    return _Search(spec, objective, durations).best()


class _Search:
    def __init__(self, spec: PipelineSpec, objective: str, durations: np.ndarray | None) -> None:
        self.spec, self.span = spec, objective == "stage-span"
        self.ranks, self.stages = spec.stage_ranks, spec.num_stages
        self.count = spec.num_microbatches
        if durations is None:
            durations = np.repeat(spec.duration_ms[:3, :, None], self.count, axis=2)
        self.durations = durations.tolist()
        self.links = spec.link_ms.tolist()
        self.memory = spec.per_stage("activation_memory").tolist()
        self.limits = [limit * (1 + 1e-9) for limit in spec.memory_limits.tolist()]

    def best(self) -> float:
        start = ((0, 0, 0),) * self.stages
        # A way: when each rank is free, when it began, when what crosses ranks arrives.
        idle = ((0.0,) * self.spec.num_ranks, (None,) * self.spec.num_ranks, ())
        layer = {start: [idle]}
        finished = ((self.count,) * 3,) * self.stages
        results: list[float] = []
        while layer:
            following: dict = {}
            for state, ways in layer.items():
                if state == finished:
                    results += [self._value(way) for way in ways]
                    continue
                for stage in range(self.stages):
                    for kinds in ((F,), (I,), (W,), (I, W)):
                        after = self._step(state, stage, kinds)
                        if after is not None:
                            for way in ways:
                                self._keep(
                                    following.setdefault(after, []),
                                    self._run(state, way, stage, kinds),
                                )
            layer = following
        return min(results, default=float("inf"))

    def _value(self, way) -> float:
        free, began, _ = way
        return max(
            end - (start if self.span else 0.0) for end, start in zip(free, began, strict=True)
        )

    def _held(self, state, rank: int) -> float:
        share = self.spec.freed_at_backward_input
        return sum(
            self.memory[s] * (f - share * i - (1 - share) * w)
            for s, (f, i, w) in enumerate(state)
            if self.ranks[s] == rank
        )

    def _step(self, state, stage: int, kinds):
        """The state after an action, or None when it must wait."""
        f, i, w = state[stage]
        if kinds == (F,):
            ready = f < self.count and (stage == 0 or state[stage - 1][F] > f)
        elif kinds == (W,):
            ready = w < i
        else:
            ready = i < f and (stage == self.stages - 1 or state[stage + 1][I] > i)
            ready = ready and (len(kinds) == 1 or w == i)
        if not ready:
            return None
        done = list(state[stage])
        for kind in kinds:
            done[kind] += 1
        after = (*state[:stage], tuple(done), *state[stage + 1 :])
        rank = self.ranks[stage]
        if kinds == (F,) and self._held(after, rank) > self.limits[rank]:
            return None
        return after

    def _run(self, state, way, stage: int, kinds):
        free, began, arrivals = way
        rank, number = self.ranks[stage], state[stage][kinds[0]]
        coming = dict(arrivals)
        start = max(free[rank], coming.pop((kinds[0], stage, number), 0.0))
        end = start + sum(self.durations[kind][stage][state[stage][kind]] for kind in kinds)
        target = None
        if kinds == (F,) and stage + 1 < self.stages:
            target, link = (F, stage + 1, number), stage
        elif kinds[0] == I and stage > 0:
            target, link = (I, stage - 1, number), stage - 1
        if self.spec.blocking_transfers and kinds != (W,) and self.links:
            # The ends of the pipeline pay their only link.
            end += self.links[min(max(stage if kinds == (F,) else stage - 1, 0), self.stages - 2)]
        if target is not None and self.ranks[target[1]] != rank:
            coming[target] = end + (0.0 if self.spec.blocking_transfers else self.links[link])
        return (
            (*free[:rank], end, *free[rank + 1 :]),
            began if began[rank] is not None else (*began[:rank], start, *began[rank + 1 :]),
            tuple(sorted(coming.items())),
        )

    def _keep(self, ways: list, new) -> None:
        def no_later(a, b) -> bool:
            return (
                all(x <= y for x, y in zip(a[0], b[0], strict=True))
                and all(x[1] <= y[1] for x, y in zip(a[2], b[2], strict=True))
                and (not self.span or a[1] == b[1])
            )

        if not any(no_later(old, new) for old in ways):
            ways[:] = [old for old in ways if not no_later(new, old)] + [new]
