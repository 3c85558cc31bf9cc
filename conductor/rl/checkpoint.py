"""Checkpoints: a training under way as one file, from which it goes on exactly."""

from __future__ import annotations

import os
import pickle
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from conductor import variation as models
from conductor.errors import FormatError
from conductor.ir.schedule import Schedule
from conductor.problem.spec import PipelineSpec
from conductor.rl.config import TrainingConfig
from conductor.rl.instance import Instance
from conductor.rl.play import Decider
from conductor.rl.ppo import Training, new_training
from conductor.variation import Variation

FORMAT = "conductor-training-1"

_PLAN_ARRAYS = ("kinds", "stages", "microbatches", "rank_offsets")


def save_checkpoint(training: Training, path: str | Path) -> None:
    """Writes a training to a file, whole or not at all."""
    plan = training.instance.plan
    state = {
        "format": FORMAT,
        "spec": asdict(training.instance.spec),
        "plan": {
            "name": plan.name,
            "stage_ranks": list(plan.stage_ranks),
            "num_microbatches": plan.num_microbatches,
            **{name: getattr(plan, name).tolist() for name in _PLAN_ARRAYS},
        },
        "variation": _variation_to_dict(training.variation),
        "config": asdict(training.config),
        "seed": training.seed,
        "num_episodes": training.num_episodes,
        "episodes": training.episodes,
        "expert": None if training.expert is None else int(training.expert),
        "network": training.network.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "rng": training.rng.bit_generator.state,
        "best_weights": training.best_weights,
        "best_ms": training.best_ms,
        "history": training.history,
    }
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def load_checkpoint(path: str | Path, *, device: str = "cpu") -> Training:
    """Reads a training from a file.

    Raises:
        FormatError: it isn't one, or cannot be read.
    """
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise FormatError(
            f"{path} is no checkpoint of a training: {type(error).__name__}"
        ) from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise FormatError(f"{path} is no checkpoint of a training (format {FORMAT})")
    instance = Instance.of(PipelineSpec(**state["spec"]), Schedule.from_arrays(**state["plan"]))
    training = new_training(
        instance,
        _variation_from_dict(state["variation"]),
        TrainingConfig(**state["config"]),
        num_episodes=state["num_episodes"],
        seed=state["seed"],
        device=device,
    )
    training.network.load_state_dict(state["network"])
    training.optimizer.load_state_dict(state["optimizer"])
    training.rng.bit_generator.state = state["rng"]
    training.episodes = state["episodes"]
    training.expert = None if state["expert"] is None else Decider(state["expert"])
    training.best_weights = {name: value.cpu() for name, value in state["best_weights"].items()}
    training.best_ms = state["best_ms"]
    training.history = [(int(episodes), float(mean)) for episodes, mean in state["history"]]
    return training


def _variation_to_dict(variation: Variation) -> dict[str, Any]:
    """The model's name in `conductor.variation` and its fields."""
    values: dict[str, Any] = {"type": type(variation).__name__}
    for field in fields(variation):  # type: ignore[arg-type]  # every model is a dataclass
        value = getattr(variation, field.name)
        values[field.name] = (
            [_variation_to_dict(part) for part in value] if field.name == "parts" else value
        )
    return values


def _variation_from_dict(values: dict[str, Any]) -> Variation:
    values = dict(values)
    model = getattr(models, values.pop("type"))
    if "parts" in values:
        values["parts"] = tuple(_variation_from_dict(part) for part in values["parts"])
    variation: Variation = model(**values)
    return variation
