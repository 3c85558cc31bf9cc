"""`conductor demo`: what Conductor does, on published numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conductor.cli.options import SeedOption, ThreadsOption

if TYPE_CHECKING:
    from conductor.rl.source import OneInstance
    from conductor.rl.training import Training

PROFILE, NOISE = "gpt-28.3b-p32-m128", 0.1
EXAMPLES = ("conductor demo", "conductor demo --episodes 2000 --seed 1")


def demo(
    episodes: Annotated[
        int, typer.Option(metavar="N", min=0, help="Episodes to train for; 0: only clone.")
    ] = 500,
    seed: SeedOption = 0,
    threads: ThreadsOption = 2,
    steps: Annotated[
        int, typer.Option(metavar="N", min=0, help="Steps of each run on real ranks; 0: none.")
    ] = 10,
    folder: Annotated[
        Path, typer.Option(metavar="FOLDER", help="For what the runs read and write.")
    ] = Path("conductor-demo"),
) -> None:
    """Plan, train and compare; run on four real ranks."""
    from conductor.cli import console, demo_ranks, plan, train, training_report
    from conductor.problem.presets import load_preset
    from conductor.rl.config import PAPER
    from conductor.rl.training import start_training
    from conductor.variation import UniformNoise

    out = console.console()
    out.print(f"1. Schedules for a published profile ({PROFILE})", style="bold")
    plan.plan(preset=PROFILE)

    out.print(f"\n2. The paper's scheduler, trained at {NOISE:.0%} noise", style="bold")
    training = start_training(
        load_preset("paper"), UniformNoise(NOISE), PAPER, num_episodes=episodes, seed=seed
    )
    train.run_training(training, save=None, threads=threads)
    out.print(
        training_report.table(
            training, training_report.evaluate_training(training, threads=threads)
        )
    )

    out.print("zb-v splits each rank's stage in two, which the bound of one stage a rank excludes.")

    out.print("\n3. One draw: the zero-bubble order, then the learned scheduler", style="bold")
    _draw(training)

    if steps:
        demo_ranks.run_experiments(folder, steps)


def _draw(training: Training[OneInstance]) -> None:
    """Two timelines under the same realised durations, to one scale."""
    import numpy as np

    from conductor.cli import console
    from conductor.ir.draw_timeline import draw_timeline
    from conductor.rl.play import Decider, play
    from conductor.schedules.registry import build
    from conductor.simulator.program import encode
    from conductor.simulator.simulate import timeline
    from conductor.simulator.timeline import Timeline

    source = training.source
    instance, spec = source.instance, source.instance.spec
    zero_bubble = build("zb-1p", spec)
    # Paired: each action has the same factor in both.
    static, own = (
        source.variation.sample(program, 1, np.random.default_rng([training.seed, 2]))
        for program in (encode(spec, zero_bubble), instance.program)
    )
    ends = play(instance, own, Decider.NETWORK, weights=training.best_policy()).end_ms[0]
    starts = ends - instance.program.busy_ms(own)[0]
    pictures = (
        timeline(spec, zero_bubble, static),
        Timeline.measured(spec, instance.plan, starts, ends),
    )
    out = console.console()
    edge = max(picture.makespan_ms for picture in pictures)
    for name, picture in zip(("zb-1p", "learned"), pictures, strict=True):
        out.print(f"{name}, {picture.makespan_ms:.2f} ms")
        out.print(console.coloured(draw_timeline(picture, out.width, edge)), soft_wrap=True)
