"""`conductor train --migration`: the policy of both tiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def train_both_tiers(
    *,
    episodes: int | None,
    seed: int,
    save: Path | None,
    resume: Path | None,
    export: Path | None,
    log: Path | None,
) -> dict[str, Any]:
    """Trains, shows how it goes on standard error, and writes the files.

    The training is written whenever the policy has been looked at, so that whatever stops it loses at most the
    updates since then.

    Args:
        episodes: simulated steps to train on; None is as many as the settings say.
        seed: of everything.
        save: where to write the training.
        resume: a training to go on with.
        export: where to write the best policy.
        log: folder for TensorBoard.

    Returns:
        The command's JSON object.

    Raises:
        FormatError: a file cannot be read or written.
        MissingExtraError: TensorBoard is not installed.
    """
    from contextlib import ExitStack
    from dataclasses import asdict, replace

    from conductor.cli import console
    from conductor.rl.scalars import summary_writer
    from conductor.rl.two_tier.policy.training import (
        TwoTierConfig,
        TwoTierTraining,
        load_two_tier_training,
        new_two_tier_training,
        save_two_tier_training,
        train_two_tier,
    )
    from conductor.rl.weights import shipped_policy

    weights = shipped_policy().weights
    if resume is not None:
        training = load_two_tier_training(resume, weights)
        save = save or resume
    else:
        config = TwoTierConfig()
        if episodes is not None:
            config = replace(config, updates=-(-episodes // (config.lessons * config.draws)))
        training = new_two_tier_training(weights, config, seed=seed)
    with ExitStack() as stack:
        writer = None
        if log is not None:
            writer = stack.enter_context(summary_writer(log))
        bar = stack.enter_context(console.progress())
        task = bar.add_task("training", total=training.config.updates, completed=training.updates)

        def show(now: TwoTierTraining) -> None:
            ratio = now.history[-1][1]
            bar.update(task, completed=now.updates)
            console.note(
                f"{now.updates:5d} of {now.config.updates} updates: {ratio:.4f} of the planner's makespan"
                f" on held-out pipelines, best {now.best_ratio:.4f}"
            )
            if writer is not None:
                writer.add_scalar("held-out/of planner", ratio, now.updates)
            if save is not None:
                save_two_tier_training(now, save)

        train_two_tier(training, show)
    result = {
        "config": asdict(training.config),
        "seed": training.seed,
        "of_planner": [list(entry) for entry in training.history],
        "best_of_planner": training.best_ratio,
    }
    if export is not None:
        training.best.save(export, **result)
    return result
