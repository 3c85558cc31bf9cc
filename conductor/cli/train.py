"""`conductor train`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
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
from conductor.cli.train_migration import train_both_tiers

if TYPE_CHECKING:
    from conductor.rl.curriculum import Curriculum
    from conductor.rl.processes import Processes
    from conductor.rl.source import OneInstance
    from conductor.rl.training import Training

DEFAULT_FILE = "conductor-training.pt"
DEFAULT_EPISODES = 20_000

EXAMPLES = (
    "conductor train --preset gpt-like --noise 0.3 --save gpt-like.pt",
    "conductor train --preset paper --noise 0.1 --config paper --episodes 500 --json",
    "conductor train --resume gpt-like.pt --export gpt-like.npz",
    "conductor train --preset gpt-like --noise 0.3 --from gpt-like.npz --episodes 2000",
    "conductor train --curriculum --save generalist.pt",
    "conductor train --migration --save both.pt --export both.npz",
)


def train(
    preset: PresetOption = None,
    spec: SpecOption = None,
    curriculum: Annotated[
        bool,
        typer.Option(
            "--curriculum", help="Train one policy on random pipelines of all sorts, not on a spec."
        ),
    ] = False,
    migration: Annotated[
        bool,
        typer.Option(
            "--migration",
            help="Train the policy of both tiers (order and lending) on random pipelines.",
        ),
    ] = False,
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
        typer.Option(
            metavar="NAME",
            help="Settings: `robust` (default), `generalist` (default with --curriculum), `paper`'s own.",
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE.npz", help="Start from this policy, without cloning."),
    ] = None,
    from_shipped: Annotated[
        bool, typer.Option("--from-shipped", help="Start from the package's own policy.")
    ] = False,
    clone: Annotated[
        bool, typer.Option("--clone", help="Clone all the same, with --from and --from-shipped.")
    ] = False,
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
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz", help="Write the best policy alone, for --policy and --from."
        ),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write scalars for TensorBoard here.")
    ] = None,
    threads: ThreadsOption = 2,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="Where the network learns: cpu or cuda.")
    ] = "cpu",
    json: JsonOption = False,
) -> None:
    """Train a policy and compare it with every baseline.

    The comparison is on fresh draws. Without --noise and --variation, times vary by 10 % (--noise 0.1).
    Processes of torchrun train one policy, each on its share of the episodes.
    """
    from conductor.cli import console, training_report
    from conductor.rl.checkpoint import load_checkpoint
    from conductor.rl.config import CONFIGS
    from conductor.rl.device import check_device
    from conductor.rl.processes import launched
    from conductor.rl.training import new_training
    from conductor.rl.weights import load_weights, save_weights, shipped_policy

    check_device(device)
    given = (preset, spec, noise, variation)
    settings = (
        *given,
        config,
        seed,
        episodes,
        from_file,
        *filter(None, (curriculum, from_shipped, clone)),
    )
    if resume is not None and any(option is not None for option in settings):
        raise UsageError("--resume takes all settings from the file: leave the others out")
    if curriculum and any(option is not None for option in given):
        raise UsageError("--curriculum makes its own specs and variation: leave the others out")
    if from_file is not None and from_shipped:
        raise UsageError("give one of --from FILE and --from-shipped")
    if clone and from_file is None and not from_shipped:
        raise UsageError(
            "--clone goes with --from or --from-shipped; without them it is always done"
        )
    if config is not None and config not in CONFIGS:
        raise UsageError(f"no configuration is named {config!r}; there are {', '.join(CONFIGS)}")
    _check_folder("--save", save)
    _check_folder("--export", export)
    if migration:
        if any(option is not None for option in (*given, config, from_file)) or any(
            (curriculum, from_shipped, clone)
        ):
            raise UsageError(
                "--migration makes its own specs and variation and starts from the package's policy: it goes"
                " with --episodes, --seed, --save, --resume, --export, --log and --json"
            )
        result = train_both_tiers(
            episodes=episodes, seed=seed or 0, save=save, resume=resume, export=export, log=log
        )
        if json:
            console.print_json(result)
        return
    with launched(device) as processes:
        if resume is not None:
            training = load_checkpoint(resume, device=processes.device)
            save = save or resume
        else:
            chosen = CONFIGS[config or ("generalist" if curriculum else "robust")]
            source = (
                _random_pipelines(seed or 0)
                if curriculum
                else _one_pipeline(*given, chosen.plan_evaluations)
            )
            policy = (
                load_weights(from_file) if from_file else shipped_policy() if from_shipped else None
            )
            training = new_training(
                source,
                chosen if policy is None else replace(chosen, hidden=policy.hidden),
                num_episodes=DEFAULT_EPISODES if episodes is None else episodes,
                seed=seed or 0,
                device=processes.device,
            )
            if policy is not None:
                training.start_from(policy, clone=clone)
        usage = run_training(training, save=save, log=log, threads=threads, processes=processes)
    if processes.rank:
        return
    result, table = training_report.report(training, usage, threads=threads)
    if export is not None:
        save_weights(export, training.stored(result))
    if json:
        console.print_json(result)
    else:
        console.console().print(table)


def _check_folder(option: str, file: Path | None) -> None:
    if file is not None and not file.parent.is_dir():
        raise UsageError(f"{option} {file}: there is no folder {file.parent}")


def _random_pipelines(seed: int) -> Curriculum:
    from conductor.rl.curriculum import Curriculum

    return Curriculum(seed=seed)


def _one_pipeline(
    preset: str | None,
    spec: Path | None,
    noise: float | None,
    variation: Path | None,
    evaluations: int,
) -> OneInstance:
    from conductor.rl.source import one_pipeline
    from conductor.variation import NoVariation

    if noise is None and variation is None:
        noise = 0.1
    return one_pipeline(
        chosen_spec(preset, spec),
        chosen_variation(noise, variation) or NoVariation(),
        evaluations=evaluations,
    )


def run_training(
    training: Training[Any],
    *,
    save: Path | None,
    threads: int,
    log: Path | None = None,
    processes: Processes | None = None,
) -> dict[str, float]:
    """Trains, shows how it goes on standard error, and writes the file.

    Args:
        training: goes on in place.
        save: where to write it.
        threads: of the simulator.
        log: folder for TensorBoard.
        processes: that train together; the first one shows, logs and writes.

    Returns:
        Wall and processor time in seconds.

    Raises:
        UsageError: the file's folder does not exist.
        MissingExtraError: TensorBoard is not installed.
        typer.Exit: with code 130 after Ctrl-C; the training is in the file then, and how to go on is said.
    """
    import time

    from conductor.cli import console
    from conductor.cli.training_view import TrainingView
    from conductor.rl.checkpoint import save_checkpoint
    from conductor.rl.ppo import train as run
    from conductor.rl.processes import ALONE

    _check_folder("--save", save)
    processes = processes or ALONE
    first = processes.rank == 0
    wall, cpu = time.perf_counter(), time.process_time()
    with ExitStack() as stack:
        scalars = None
        if log is not None and first:
            from conductor.rl.scalars import ScalarLog

            scalars = stack.enter_context(ScalarLog(log))
        view = stack.enter_context(TrainingView(training, silent=not first))

        def notify(now: Training[Any]) -> None:
            view.show(now)
            if scalars is not None:
                scalars.write(now)

        finished = run(
            training, threads=threads, processes=processes,
            on_update=notify,
        )  # fmt: skip
    file = save or Path(DEFAULT_FILE)
    if first and (save is not None or not finished):
        save_checkpoint(training, file)
    if not finished:
        if first:
            console.note(
                f"stopped after {training.episodes} of {training.num_episodes} episodes; go on with:"
                f" conductor train --resume {file}"
            )
        raise typer.Exit(130)
    return {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
    }
