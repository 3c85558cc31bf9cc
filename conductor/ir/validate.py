"""Validation: complete, ordered, free of deadlock, within memory."""

from __future__ import annotations

from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec


def validate(schedule: Schedule, spec: PipelineSpec | None = None) -> None:
    """Placeholder to be written."""
