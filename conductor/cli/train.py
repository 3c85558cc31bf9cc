"""`conductor train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conductor.cli.options import (
    JsonOption,
    NoiseOption,
    PresetOption,
    SpecOption,
    ThreadsOption,
    UsageError,
    VariationOption,
    chosen_spec,
    chosen_variation,
)

if TYPE_CHECKING:
    from conductor.rl.evaluation import Evaluation
    from conductor.rl.source import OneInstance
    from conductor.rl.training import Training

DEFAULT_FILE = "conductor-training.pt"
DEFAULT_EPISODES = 20_000

EXAMPLES = (
    "conductor train --preset gpt-like --noise 0.3 --save gpt-like.pt",
    "conductor train --preset paper --noise 0.1 --config paper --episodes 500 --json",
    "conductor train --resume gpt-like.pt",
)


def train(
    preset: PresetOption = None,
    spec: SpecOption = None,
    noise: NoiseOption = None,
    variation: VariationOption = None,
    episodes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help=f"Simulated steps to train on after cloning (default {DEFAULT_EPISODES}; 0: only"
            " clone).",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Settings: `robust` (default), or `paper`'s own."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Seed of everything that is drawn."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.pt", help="Write the training to this file.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FILE.pt", help="Go on with the training in this file, exactly."),
    ] = None,
    threads: ThreadsOption = 2,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="Where the network learns: cpu or cuda.")
    ] = "cpu",
    json: JsonOption = False,
) -> None:
    """Train a policy and compare it with every baseline.

    The comparison is on fresh draws. Without --noise and --variation, times vary by 10 % (--noise 0.1).
    """
    from conductor.cli import console
    from conductor.rl.checkpoint import load_checkpoint
    from conductor.rl.config import CONFIGS
    from conductor.rl.device import check_device
    from conductor.rl.training import start_training
    from conductor.variation import NoVariation

    check_device(device)
    if resume is not None:
        given = (preset, spec, noise, variation, config, seed, episodes)
        if any(option is not None for option in given):
            raise UsageError("--resume takes all settings from the file: leave the others out")
        training = load_checkpoint(resume, device=device)
        save = save or resume
    else:
        if config is not None and config not in CONFIGS:
            raise UsageError(
                f"no configuration is named {config!r}; there are {', '.join(CONFIGS)}"
            )
        if noise is None and variation is None:
            noise = 0.1
        training = start_training(
            chosen_spec(preset, spec),
            chosen_variation(noise, variation) or NoVariation(),
            CONFIGS[config or "robust"],
            num_episodes=DEFAULT_EPISODES if episodes is None else episodes,
            seed=seed or 0,
            device=device,
        )
    usage = run_training(training, save=save, threads=threads)
    evaluation = evaluate_training(training, threads=threads)
    if json:
        console.print_json(as_json(training, evaluation, usage))
    else:
        console.console().print(table(training, evaluation))


def run_training(
    training: Training[OneInstance], *, save: Path | None, threads: int
) -> dict[str, float]:
    """Trains with a progress bar on standard error and writes the file.

    Returns:
        Wall and processor time in seconds.

    Raises:
        UsageError: the file's folder does not exist.
        typer.Exit: with code 130 after Ctrl-C; the training is in the file then, and how to go on is said.
    """
    import time

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from conductor.cli import console
    from conductor.rl.checkpoint import save_checkpoint
    from conductor.rl.ppo import train as run

    if save is not None and not save.parent.is_dir():
        raise UsageError(f"--save {save}: there is no folder {save.parent}")
    wall, cpu = time.perf_counter(), time.process_time()
    columns = (
        TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"),
    )  # fmt: skip
    with Progress(*columns, console=console.console(stderr=True)) as progress:
        bar = progress.add_task(
            "", total=training.num_episodes, completed=training.episodes, state="cloning"
        )

        def show(now: Training[OneInstance]) -> None:
            state = f"{now.history[-1][1]:.2f} ms, best {now.best_score:.2f} ms"
            progress.update(bar, completed=now.episodes, state=state)

        finished = run(training, threads=threads, on_update=show)
    file = save or Path(DEFAULT_FILE)
    if save is not None or not finished:
        save_checkpoint(training, file)
    if not finished:
        console.note(
            f"stopped after {training.episodes} of {training.num_episodes} episodes; go on with:"
            f" conductor train --resume {file}"
        )
        raise typer.Exit(130)
    return {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
    }


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
    """What happened in a training."""
    return {
        "episodes": training.episodes,
        "plan": training.source.instance.plan.name,
        "cloned_from": training.experts[0].name.lower().replace("_", "-")
        if training.experts
        else None,
        "validation_ms": [list(entry) for entry in training.history],
        "best_validation_ms": training.best_score,
        **usage,
    }


def as_json(
    training: Training[OneInstance], evaluation: Evaluation, usage: dict[str, float]
) -> dict[str, Any]:
    """The command's JSON object."""
    from dataclasses import asdict

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


def table(training: Training[OneInstance], evaluation: Evaluation) -> Any:
    """The command's table."""
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
