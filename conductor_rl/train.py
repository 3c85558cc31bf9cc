"""`python -m conductor_rl.train`: the paper's experiment, one JSON object on standard output."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import typer

from conductor.cli.training_report import training_json
from conductor.errors import ConductorError
from conductor.rl.config import PAPER
from conductor.rl.device import check_device
from conductor.rl.evaluation import (
    GREEDY,
    LOCK_STEP,
    POLICY,
    READY_FIRST,
    Evaluation,
    policy_call_ms,
)
from conductor_rl.pipeline_simulator import PipelineSimulator
from conductor_rl.ppo_scheduler import PPOScheduler


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"conductor_rl.train: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains and evaluates.

    Returns:
        0; 2 where an option is at fault; 130 after Ctrl-C.
    """
    options = _parser().parse_args(arguments)
    try:
        check_device(options.device)
        simulator = PipelineSimulator(
            num_devices=options.devices,
            num_micro_batches=options.micro_batches,
            micro_batch_size=options.micro_batch_size,
            max_memory=options.max_memory,
            noise_level=options.noise,
        )
        scheduler = PPOScheduler(simulator, seed=options.seed)
        scheduler.train(
            options.episodes, threads=options.threads, device=options.device, save=options.save
        )
    except ConductorError as error:
        print(f"conductor_rl.train: {error}", file=sys.stderr)
        return 2
    except typer.Exit as stopped:
        return stopped.exit_code
    evaluation = scheduler.evaluate(threads=options.threads)
    json.dump(_report(options, scheduler, evaluation), sys.stdout, indent=2, allow_nan=False)
    print()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m conductor_rl.train", description=__doc__)
    count, positive = _whole(0), _whole(1)
    parser.add_argument("--devices", type=positive, default=4, help="ranks")
    parser.add_argument("--micro-batches", type=positive, default=8)
    parser.add_argument("--micro-batch-size", type=positive, default=32)
    parser.add_argument("--max-memory", type=float, default=4.0, help="of a rank, in micro-batches")
    parser.add_argument("--noise", type=float, default=0.1, help="x of 1 + U(-x, x)")
    parser.add_argument("--episodes", type=count, default=500, help="0 evaluates the cloned policy")
    parser.add_argument("--seed", type=count, default=0)
    parser.add_argument("--device", default="cpu", help="where the network learns: cpu or cuda")
    parser.add_argument("--save", type=Path, metavar="FILE.pt", help="write the training here")
    parser.add_argument("--threads", type=positive, default=2, help="of the simulator")
    return parser


def _whole(least: int) -> Any:
    """A parser of whole numbers that are not below the least."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {least}, not {text}"
            )
        return value

    return parse


def _report(
    options: argparse.Namespace, scheduler: PPOScheduler, evaluation: Evaluation
) -> dict[str, Any]:
    training = scheduler.training
    assert training is not None
    simulator = scheduler.simulator
    lock_step, policy = evaluation.mean(LOCK_STEP), evaluation.mean(POLICY)
    calls = policy_call_ms(
        simulator.instance, training.best_policy(), simulator.sample_durations(options.seed)
    )
    samples = simulator.num_micro_batches * simulator.micro_batch_size
    return {
        "paper_configuration": {
            "devices": options.devices,
            "micro_batches": options.micro_batches,
            "micro_batch_size": options.micro_batch_size,
            "max_memory": options.max_memory,
            "noise": options.noise,
            "episodes": options.episodes,
            "seed": options.seed,
        },
        "ppo": {
            "learning_rate": scheduler.lr,
            "clip": scheduler.epsilon,
            "discount_factor": scheduler.gamma,
            "update_epochs": scheduler.epochs,
            "batch_size": scheduler.batch_size,
            "behavioral_cloning_rollouts": scheduler.bc_rollouts,
            "behavioral_cloning_epochs": scheduler.bc_epochs,
            "value_loss_coefficient": PAPER.value_coefficient,
            "entropy_coefficient": PAPER.entropy_coefficient,
        },
        "training": training_json(training, scheduler.usage),
        "evaluation": {
            "draws": len(evaluation.bound_ms),
            "zbpp_completion_time": lock_step,
            "zbpp": "the paper's heuristic in lock-step rounds; without that barrier it is"
            " event_driven_zbpp_completion_time",
            "event_driven_zbpp_completion_time": evaluation.mean(GREEDY),
            "ready_first_completion_time": evaluation.mean(READY_FIRST),
            "per_rank_bound": float(evaluation.bound_ms.mean()),
            "ppo_completion_time": policy,
            "ppo_completion_time_ci95": list(evaluation.ci95(POLICY)),
            "improvement_ratio": 1.0 - policy / lock_step,
            "throughput_improvement_ratio": lock_step / policy - 1.0,
            "improvement_ratio_over_event_driven_zbpp": 1.0 - policy / evaluation.mean(GREEDY),
            "samples_per_second": 1e3 * samples / policy,
            "decision_count": float(evaluation.num_decisions.mean()),
            "avg_policy_call_ms": float(calls.mean()),
            "p99_policy_call_ms": float(np.quantile(calls, 0.99)),
            "completion_times": {name: evaluation.mean(name) for name in evaluation.makespan_ms},
            "left_out": evaluation.left_out,
        },
    }


if __name__ == "__main__":
    sys.exit(main())
