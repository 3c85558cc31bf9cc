"""What stages take, from steps that run anyway."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from conductor.errors import RankError
from conductor.problem.placement import placement_name
from conductor.problem.spec import PipelineSpec
from conductor.runtime.clocks import Transfers, clock_offsets_ms, link_samples, machine, merged
from conductor.runtime.collectives import gather
from conductor.runtime.executor import ConductorSchedule

Samples = dict[tuple[str, int], list[float]]
"""Measured milliseconds by kind ("F", "I", "W", "B", or "transfer") and stage (of a link, the lower).
Where a stage has B and W, the W are the parts of its B."""


def step_samples(schedule: ConductorSchedule) -> Samples:
    """What the last training step measured on this rank; nothing is added to the step's own path."""
    samples: Samples = defaultdict(list)
    times = schedule.times
    if times is None:
        return samples
    for action, start, end in zip(schedule.actions, times.start_ns, times.end_ns, strict=True):
        samples[action.kind.name, action.stage].append((end - start) / 1e6)
    return samples


class Profiler:
    """Collects the measured times of a schedule's steps.

    Args:
        schedule: whose steps to measure.
    """

    def __init__(self, schedule: ConductorSchedule) -> None:
        self._schedule = schedule
        self._samples: Samples = defaultdict(list)
        self._transfers: list[Transfers] = []

    def record(self) -> None:
        """Takes the last training step in; call it after each step that shall count."""
        for key, values in step_samples(self._schedule).items():
            self._samples[key] += values
        if self._schedule.times is not None:
            self._transfers.append(self._schedule.times.transfers)

    def add(self, kind: str, stage: int, milliseconds: float) -> None:
        """Takes in a sample that is no action of its own: W within B."""
        self._samples[kind, stage].append(milliseconds)

    def gather(self) -> Samples:
        """The samples of all ranks, on every rank; every rank calls it."""
        rows = gather((self._samples, merged(self._transfers), machine()), self._schedule.group)
        together: Samples = defaultdict(list)
        for samples, _, _ in rows:
            for key, values in samples.items():
                together[key] += values
        places, transfers = self._schedule.plan.stage_ranks, merged(row[1] for row in rows)
        offsets_ms = clock_offsets_ms(places, transfers, [row[2] for row in rows])
        for link, values in link_samples(places, transfers, offsets_ms).items():
            together["transfer", link] = values
        return together

    def spec(
        self, *, name: str, source: str, input_share: float = 0.5, **fields: object
    ) -> PipelineSpec:
        """Medians of what was measured, as a spec with the plan's placement; every rank calls it.

        Args:
            name: of the spec.
            source: said in the file: what was measured, and where.
            input_share: of a backward that was measured in one (B), the part for the input.
            fields: further fields of the spec (memory, another placement).

        Raises:
            RankError: some stage has no forward or no backward among the samples.
        """
        medians = {key: float(np.median(values)) for key, values in self.gather().items()}
        plan = self._schedule.plan

        def times(kind: str) -> tuple[float, ...]:
            try:
                return tuple(medians[kind, stage] for stage in range(plan.num_stages))
            except KeyError as missing:
                raise RankError(f"no {kind} of stage {missing.args[0][1]} was measured") from None

        for stage in range(plan.num_stages):
            if (whole := medians.get(("B", stage))) is not None:
                weight = medians.setdefault(("W", stage), whole * (1.0 - input_share))
                medians.setdefault(("I", stage), max(whole - weight, 0.0))
        named = placement_name(plan.stage_ranks, plan.num_ranks)
        given: dict[str, object] = {
            "num_ranks": plan.num_ranks,
            "stages_per_rank": len(plan.stage_ranks) // plan.num_ranks if named else 1,
            "placement": named or plan.stage_ranks,
            "num_microbatches": plan.num_microbatches,
            "forward_ms": times("F"),
            "backward_input_ms": times("I"),
            "backward_weight_ms": times("W"),
            "transfer_ms": tuple(
                medians.get(("transfer", link), 0.0) for link in range(plan.num_stages - 1)
            ),
        }
        return PipelineSpec(name=name, source=source, **{**given, **fields})  # type: ignore[arg-type]  # checked there

    def spread(self) -> dict[str, float]:
        """Interquartile range over median, by kind, the median of all stages; every rank calls it."""
        widths: dict[str, list[float]] = defaultdict(list)
        for (kind, _), values in self.gather().items():
            low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
            widths[kind].append(float((high - low) / middle) if middle else 0.0)
        return {kind: float(np.median(values)) for kind, values in sorted(widths.items())}
