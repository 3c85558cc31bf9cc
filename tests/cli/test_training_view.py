from __future__ import annotations

from io import StringIO
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from conductor.cli.training_view import TrainingView, figures


def training(*, relative: bool) -> Any:
    return SimpleNamespace(
        source=SimpleNamespace(relative=relative), num_episodes=100, episodes=40, experts=(),
        history=[(40, 1.05 if relative else 260.0)], best_score=1.04 if relative else 259.0,
        baselines={"plan": 1.06 if relative else 262.0},
        figures={
            "reward": -1.5, "entropy": 0.25, "decisions_per_s": 81234.5, "kl": 0.01,
            "clip_fraction": 0.125,
        },
    )  # fmt: skip


def text(now: Any) -> str:
    out = Console(width=100, record=True, file=StringIO())
    out.print(figures(now))
    return out.export_text()


def test_figures_compare_the_best_policy_with_the_baselines() -> None:
    shown = text(training(relative=False))
    assert "259.00 ms" in shown
    assert "262.00 ms" in shown
    assert "policy -1.15 %" in shown
    assert "81,234 decisions/s" in shown
    assert "12.5 %" in shown


def test_scores_of_many_pipelines_are_over_the_bound() -> None:
    shown = text(training(relative=True))
    assert "4.00 % over bound" in shown
    assert "6.00 % over bound" in shown


def test_where_there_is_no_terminal_a_bar_is_all(capsys: Any) -> None:
    with TrainingView(training(relative=False)) as view:
        view.show(training(relative=False))
    shown = capsys.readouterr().err
    assert "40/100" in shown
    assert "260.00 ms, best 259.00 ms" in shown
    assert "held out" not in shown


def test_a_silent_view_shows_nothing(capsys: Any) -> None:
    with TrainingView(training(relative=False), silent=True) as view:
        view.show(training(relative=False))
    assert capsys.readouterr().err == ""
