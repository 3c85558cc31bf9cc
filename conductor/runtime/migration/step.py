"""What moved in one step of a training that may move work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from conductor.ir.schedule import Schedule
from conductor.migration.model import SimpleModel
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.runtime.exchange.help import StepHelps


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStep:
    """What moved in one step.

    Attributes:
        is_on: whether work might move.
        helps: that were done.
        refused: requests that lenders refused.
        late: promised helps that the borrowers gave up.
        bytes: of tensors that moved, there and back.
        waited_ms: time that actions waited for lenders, all ranks.
        peak_bytes: most bytes of others that a rank held.
        planned_bytes: most that the plan has a rank hold.
        moved_share: work that moved, of all work.
        weight_helps: those with weight gradients.
        predicted_ms: the step, simulated before it with the times measured until then; 0 but on rank 0.
    """

    is_on: bool = False
    helps: int = 0
    refused: int = 0
    late: int = 0
    bytes: int = 0
    waited_ms: float = 0.0
    peak_bytes: int = 0
    planned_bytes: int = 0
    moved_share: float = 0.0
    weight_helps: int = 0
    predicted_ms: float = 0.0


def summed_up(
    reports: Sequence[StepHelps],
    plan: Schedule,
    spec: PipelineSpec,
    model: SimpleModel,
    *,
    planned_bytes: int,
    predicted_ms: float,
) -> MigrationStep:
    """A step in which work might move.

    Args:
        reports: of all ranks.
        plan: their order.
        spec: expected times.
        model: what may move.
        planned_bytes: as of `MigrationStep`.
        predicted_ms: likewise.
    """
    helps = [help_ for report in reports for help_ in report.helps]
    done = [help_ for help_ in helps if help_.outcome == "done"]
    kinds = [Kind(int(plan.kinds[help_.action])) for help_ in done]
    outcomes = Counter(help_.outcome for help_ in helps)
    durations = spec.duration_ms[plan.kinds, plan.stages]
    moved = sum(
        durations[help_.action] * model.share(kind) * help_.parts / model.parts
        for help_, kind in zip(done, kinds, strict=True)
    )
    return MigrationStep(
        is_on=True,
        helps=len(done),
        refused=outcomes["refused"],
        late=outcomes["late"],
        bytes=sum(help_.num_bytes for help_ in helps),
        waited_ms=sum(report.waited_ns for report in reports) / 1e6,
        peak_bytes=max(report.peak_bytes for report in reports),
        planned_bytes=planned_bytes,
        moved_share=float(moved / durations.sum()),
        weight_helps=kinds.count(Kind.W),
        predicted_ms=predicted_ms,
    )
