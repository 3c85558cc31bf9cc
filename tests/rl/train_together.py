"""Trains in the processes that torchrun has started, and writes checkpoints: `... FOLDER`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from conductor.rl.checkpoint import save_checkpoint
from conductor.rl.config import TrainingConfig
from conductor.rl.ppo import train
from conductor.rl.processes import launched
from conductor.rl.source import Source
from conductor.rl.training import Training, new_training
from tests.rl.test_training import QUICK, SAMPLED, quick_curriculum, quick_training


def _few_steps(training: Training[Source], config: TrainingConfig) -> Training[Source]:
    """Few, so that rounding hardly grows: a unit that it lets through or not makes all the difference."""
    config = replace(config, cloning_epochs=1, update_epochs=2)
    return new_training(training.source, config, num_episodes=32, seed=3)


def one_pipeline() -> Training[Source]:
    """By what each choice leads to."""
    return _few_steps(quick_training(), QUICK)


def random_pipelines() -> Training[Source]:
    """By what each choice leads to."""
    return _few_steps(quick_curriculum(), QUICK)


def sampled_pipelines() -> Training[Source]:
    """By what the episodes of a draw come to."""
    return _few_steps(quick_curriculum(), SAMPLED)


MAKES = (one_pipeline, random_pipelines, sampled_pipelines)

if __name__ == "__main__":
    with launched("cpu") as processes:
        for make in MAKES:
            made = make()
            assert train(made, processes=processes)
            save_checkpoint(made, Path(sys.argv[1]) / f"{make.__name__}-{processes.rank}.pt")
