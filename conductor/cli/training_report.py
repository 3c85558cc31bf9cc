"""What `conductor train` says at the end: the policy against every baseline."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from conductor.rl.curriculum import Curriculum
    from conductor.rl.evaluation import Evaluation
    from conductor.rl.generality import Generality
    from conductor.rl.play import Decider
    from conductor.rl.source import OneInstance
    from conductor.rl.training import Training

TASKS, DRAWS = 100, 100
"""On how many new pipelines a generalist is compared, and on how many draws of each."""


def report(
    training: Training[Any], usage: dict[str, float], *, threads: int
) -> tuple[dict[str, Any], Table]:
    """The command's JSON object and its table."""
    from conductor.rl.curriculum import Curriculum
    from conductor.rl.generality import evaluate_on_tasks

    if not isinstance(training.source, Curriculum):
        evaluation = evaluate_training(training, threads=threads)
        return as_json(training, evaluation, usage), table(training, evaluation)
    tasks = training.source.evaluation_tasks(TASKS)
    generality = evaluate_on_tasks(
        tasks, training.best_policy(), draws=DRAWS, seed=training.seed, threads=threads
    )
    return general_json(training, generality, usage), general_table(generality)


def evaluate_training(training: Training[OneInstance], *, threads: int) -> Evaluation:
    """The best policy of a training on 1,000 fresh draws (one where all are alike)."""
    from conductor.rl.evaluation import evaluate
    from conductor.variation import UniformNoise

    alike = training.source.variation == UniformNoise(0.0)
    return evaluate(
        training.source.instance, training.best_policy(), training.source.variation,
        draws=1 if alike else 1000, seed=training.seed, threads=threads,
    )  # fmt: skip


def training_json(training: Training[OneInstance], usage: dict[str, float]) -> dict[str, Any]:
    """What happened in a training on one pipeline."""
    return {
        "episodes": training.episodes,
        "plan": training.source.instance.plan.name,
        "cloned_from": _name(training.experts[0]) if training.experts else None,
        "validation_ms": [list(entry) for entry in training.history],
        "best_validation_ms": training.best_score,
        **usage,
    }


def as_json(
    training: Training[OneInstance], evaluation: Evaluation, usage: dict[str, float]
) -> dict[str, Any]:
    """The JSON object of a training on one pipeline."""
    return {
        "spec": asdict(training.source.instance.spec),
        "config": asdict(training.config),
        "seed": training.seed,
        "training": training_json(training, usage),
        "evaluation": {
            "draws": len(evaluation.bound_ms),
            "per_rank_bound_ms": float(evaluation.bound_ms.mean()),
            "makespan_ms": {
                name: {"mean": evaluation.mean(name), "ci95": list(evaluation.ci95(name))}
                for name in evaluation.makespan_ms
            },
            "left_out": evaluation.left_out,
            "decisions": float(evaluation.num_decisions.mean()),
        },
    }


def table(training: Training[OneInstance], evaluation: Evaluation) -> Table:
    """The table of a training on one pipeline."""
    from conductor.cli import console
    from conductor.rl.evaluation import POLICY

    draws = len(evaluation.bound_ms)
    bound = float(evaluation.bound_ms.mean())
    table = console.new_table(
        f"{training.source.instance.spec.name}: mean makespan of {draws} fresh draw(s),"
        f" per-rank bound {bound:.2f} ms",
        "scheduler", "makespan ms", "95 % interval", "over bound", "less the policy's",
    )  # fmt: skip
    for name in sorted(evaluation.makespan_ms, key=evaluation.mean):
        low, high = evaluation.ci95(name)
        less, more = evaluation.ci95(name, minus=POLICY)
        table.add_row(
            name, f"{evaluation.mean(name):.2f}", f"{low:.2f} to {high:.2f}",
            "other placement"
            if name in evaluation.elsewhere
            else f"{100.0 * (evaluation.mean(name) / bound - 1.0):.2f} %",
            "" if name == POLICY else f"{less:+.2f} to {more:+.2f}",
            style="bold" if name == POLICY else None,
        )  # fmt: skip
    return table


def general_json(
    training: Training[Curriculum], generality: Generality, usage: dict[str, float]
) -> dict[str, Any]:
    """The JSON object of a training on random pipelines."""
    return {
        "curriculum": asdict(training.source),
        "config": asdict(training.config),
        "seed": training.seed,
        "training": {
            "episodes": training.episodes,
            "cloned_from": dict(Counter(map(_name, training.experts or ()))),
            "validation_over_bound": [list(entry) for entry in training.history],
            "best_validation_over_bound": training.best_score,
            **usage,
        },
        "evaluation": {
            "pipelines": TASKS,
            "draws": DRAWS,
            "makespan_over_bound": {
                name: {"mean": generality.mean(name), "ci95": list(generality.ci95(name))}
                for name in generality.over_bound
            },
        },
    }


def general_table(generality: Generality) -> Table:
    """The table of a training on random pipelines."""
    from conductor.cli import console
    from conductor.rl.evaluation import POLICY

    table = console.new_table(
        f"Makespan: {TASKS} new pipelines, {DRAWS} draws of each",
        "execution", "mean over bound", "95 % interval", "less the policy's",
    )  # fmt: skip
    for name in sorted(generality.over_bound, key=generality.mean):
        low, high = (100.0 * (end - 1.0) for end in generality.ci95(name))
        less, more = (100.0 * end for end in generality.ci95(name, minus=POLICY))
        table.add_row(
            name, f"{100.0 * (generality.mean(name) - 1.0):.2f} %", f"{low:.2f} to {high:.2f} %",
            "" if name == POLICY else f"{less:+.2f} to {more:+.2f} %",
            style="bold" if name == POLICY else None,
        )  # fmt: skip
    return table


def _name(decider: Decider) -> str:
    return decider.name.lower().replace("_", "-")
