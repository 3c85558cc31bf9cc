"""What a training shows on standard error while it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from conductor.cli import console

if TYPE_CHECKING:
    from conductor.rl.training import Training


class TrainingView(Progress):
    """A bar with the score; on a terminal also the baselines and the figures of the last update."""

    def __init__(self, training: Training[Any], *, silent: bool = False) -> None:
        """Makes the bar.

        Args:
            training: about to go on.
            silent: shows nothing.
        """
        self._below: Table | None = None
        super().__init__(
            TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[state]}"),
            console=console.console(stderr=True), disable=silent,
        )  # fmt: skip
        state = "cloning" if training.experts is None else ""
        self._task = self.add_task(
            "", total=training.num_episodes, completed=training.episodes, state=state
        )

    def show(self, training: Training[Any]) -> None:
        """Shows where the training is after an update."""
        relative = training.source.relative
        state = f"{_score(training.history[-1][1], relative)}, best {_score(training.best_score, relative)}"
        if self.console.is_terminal:
            self._below = figures(training)
        self.update(self._task, completed=training.episodes, state=state)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bar, and what stands below it."""
        yield from super().get_renderables()
        if self._below is not None:
            yield self._below


def figures(training: Training[Any]) -> Table:
    """Held-out scores, how the best policy compares, and the last update."""
    relative, best = training.source.relative, training.best_score
    table = Table.grid(padding=(0, 3))
    table.add_row("held out: best policy", _score(best, relative))
    for name, score in training.baselines.items():
        table.add_row(
            f"          {name}",
            _score(score, relative),
            f"policy {100.0 * (best / score - 1.0):+.2f} %",
        )
    last = training.figures
    if last:
        table.add_row(
            "update:   reward, entropy", f"{last['reward']:.3f}, {last['entropy']:.3f}",
            f"{last['decisions_per_s']:,.0f} decisions/s",
        )  # fmt: skip
        table.add_row(
            "          divergence, clipped",
            f"{last['kl']:.4f}, {100.0 * last['clip_fraction']:.1f} %",
        )
    return table


def _score(value: float, relative: bool) -> str:
    """A held-out score with its unit."""
    return f"{100.0 * (value - 1.0):.2f} % over bound" if relative else f"{value:.2f} ms"
