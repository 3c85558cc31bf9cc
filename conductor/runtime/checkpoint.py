"""Checkpoints of a training on several ranks: a folder with one file a rank."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from conductor.errors import FormatError
from conductor.ir.action import Action
from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec

FORMAT = "conductor training rank 1"


def save_rank(folder: str | Path, rank: int, state: dict[str, Any]) -> None:
    """Writes one rank's state; what was there before stays whole until the new file is.

    Args:
        folder: made where it is not there.
        rank: whose state.
        state: tensors, numbers, texts, and lists, tuples and dictionaries of them.

    Raises:
        FormatError: the file cannot be written.
    """
    path = _path(folder, rank)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        torch.save({"format": FORMAT, **state}, part)
        part.replace(path)
    except (OSError, RuntimeError) as error:
        raise FormatError(f"{path}: cannot write the checkpoint: {error}") from None


def load_rank(folder: str | Path, rank: int) -> dict[str, Any]:
    """Reads one rank's state.

    Raises:
        FormatError: no such file, or not one of these.
    """
    path = _path(folder, rank)
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except OSError as error:
        raise FormatError(f"{path}: cannot read the checkpoint: {error.strerror}") from None
    except Exception:  # torch and pickle raise many kinds
        state = {}
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise FormatError(f"{path}: not a checkpoint of one rank's training")
    return state


def schedule_state(schedule: Schedule) -> dict[str, Any]:
    """A schedule as plain values."""
    return {
        "name": schedule.name,
        "stage_ranks": list(schedule.stage_ranks),
        "num_microbatches": schedule.num_microbatches,
        "rows": [[str(action) for action in row] for row in schedule.rows],
    }


def schedule_from(state: dict[str, Any]) -> Schedule:
    """The schedule of `schedule_state`."""
    return Schedule.from_actions(
        [[Action.parse(cell) for cell in row] for row in state["rows"]],
        name=state["name"],
        stage_ranks=state["stage_ranks"],
        num_microbatches=state["num_microbatches"],
    )


def spec_state(spec: PipelineSpec) -> dict[str, Any]:
    """A spec as plain values."""
    return asdict(spec)


def spec_from(state: dict[str, Any]) -> PipelineSpec:
    """The spec of `spec_state`."""
    return PipelineSpec(**state)


def _path(folder: str | Path, rank: int) -> Path:
    return Path(folder) / f"rank-{rank}.pt"
