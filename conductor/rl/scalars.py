"""Scalars of a training for TensorBoard."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from conductor.errors import MissingExtraError
from conductor.rl.source import Source
from conductor.rl.training import Training


def summary_writer(folder: str | Path) -> Any:
    """TensorBoard's writer, on a new file in the folder.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtraError(
            "a log for TensorBoard needs it: pip install 'conductor-pipeline[log]'"
        ) from None
    return SummaryWriter(str(folder))


class ScalarLog(AbstractContextManager["ScalarLog"]):
    """Writes the figures of every update to a folder that TensorBoard reads; the step is the episode."""

    def __init__(self, folder: str | Path) -> None:
        """Opens a new file in the folder.

        Raises:
            MissingExtraError: TensorBoard is not installed.
        """
        self._writer = summary_writer(folder)

    def write(self, training: Training[Source]) -> None:
        """The last update's figures, and the held-out score beside the baselines if it is new."""
        scalars = {f"update/{name}": value for name, value in training.figures.items()}
        if training.history[-1][0] == training.episodes:
            scalars["held-out/policy"] = training.history[-1][1]
            scalars["held-out/best"] = training.best_score
            scalars |= {f"held-out/{name}": value for name, value in training.baselines.items()}
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, training.episodes)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Writes what is left."""
        self._writer.close()
