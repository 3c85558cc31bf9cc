"""The paper's learned scheduler by its names; the work is done in `conductor.rl`."""

from __future__ import annotations

from pathlib import Path

from conductor.cli.train import run_training
from conductor.cli.training_report import evaluate_training
from conductor.rl.config import PAPER
from conductor.rl.environment import PipelineEnv
from conductor.rl.evaluation import Evaluation
from conductor.rl.policy import ActorCritic
from conductor.rl.source import OneInstance
from conductor.rl.training import Training, new_training
from conductor_rl.pipeline_simulator import PipelineSimulator

__all__ = ["ActorCritic", "PPOScheduler", "PipelineSchedulingEnv"]


class PipelineSchedulingEnv(PipelineEnv):
    """The Gymnasium environment of a simulator."""

    def __init__(self, simulator: PipelineSimulator) -> None:
        """Takes the simulator's pipeline and noise."""
        super().__init__(simulator.instance, simulator.variation)


class PPOScheduler:
    """Cloning and PPO with the paper's settings."""

    def __init__(self, simulator: PipelineSimulator, seed: int = 0) -> None:
        """Takes the simulator to schedule and the seed of everything random."""
        self.simulator = simulator
        self.seed = seed
        self.lr = PAPER.learning_rate
        self.gamma = PAPER.discount
        self.epsilon = PAPER.clip
        self.epochs = PAPER.update_epochs
        self.batch_size = PAPER.batch_size
        self.bc_rollouts = PAPER.cloning_rollouts
        self.bc_epochs = PAPER.cloning_epochs
        self.training: Training[OneInstance] | None = None
        self.usage: dict[str, float] = {}

    def train(
        self,
        num_episodes: int = 500,
        *,
        threads: int = 1,
        device: str = "cpu",
        save: Path | None = None,
    ) -> Training[OneInstance]:
        """Clones, then trains for a number of episodes, with a progress bar on standard error."""
        self.training = new_training(
            OneInstance(instance=self.simulator.instance, variation=self.simulator.variation), PAPER,
            num_episodes=num_episodes, seed=self.seed, device=device,
        )  # fmt: skip
        self.usage = run_training(self.training, save=save, threads=threads)
        return self.training

    def evaluate(self, *, threads: int = 1) -> Evaluation:
        """The trained policy and all baselines on fresh draws; trains first if that has not been done."""
        training = self.training or self.train(threads=threads)
        return evaluate_training(training, threads=threads)
