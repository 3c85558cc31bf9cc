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
from conductor.rl.curriculum import Curriculum
from conductor.rl.instance import Instance
from conductor.rl.play import Decider
from conductor.rl.source import OneInstance, Source
from conductor.rl.training import Training, new_training
from conductor.variation import Variation

FORMAT = "conductor-training-2"

_PLAN_ARRAYS = ("kinds", "stages", "microbatches", "rank_offsets")


def save_checkpoint(training: Training[Source], path: str | Path) -> None:
    """Writes a training to a file, whole or not at all."""
    state = {
        "format": FORMAT,
        "source": _source_to_dict(training.source),
        "config": asdict(training.config),
        "seed": training.seed,
        "num_episodes": training.num_episodes,
        "episodes": training.episodes,
        "experts": None if training.experts is None else [int(e) for e in training.experts],
        "network": training.network.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "rng": training.rng.bit_generator.state,
        "best_weights": training.best_weights,
        "best_score": training.best_score,
        "history": training.history,
    }
    write_state(state, path)


def write_state(state: dict[str, Any], path: str | Path) -> None:
    """Writes the state of a training, whole or not at all."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def read_state(
    path: str | Path, form: str, *, what: str = "a training", device: str = "cpu"
) -> dict[str, Any]:
    """Reads the state of a training, of the format given; `what` it should be, for messages.

    Raises:
        FormatError: it isn't one, or cannot be read.
    """
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise FormatError(f"{path} is no checkpoint of {what}: {type(error).__name__}") from None
    if not isinstance(state, dict) or state.get("format") != form:
        raise FormatError(f"{path} is no checkpoint of {what} (format {form})")
    return state


def load_checkpoint(path: str | Path, *, device: str = "cpu") -> Training[OneInstance | Curriculum]:
    """Reads a training from a file.

    Raises:
        FormatError: it isn't one, or cannot be read.
    """
    state = read_state(path, FORMAT, device=device)
    training = new_training(
        _source_from_dict(state["source"]),
        TrainingConfig(**state["config"]),
        num_episodes=state["num_episodes"],
        seed=state["seed"],
        device=device,
    )
    training.network.load_state_dict(state["network"])
    training.optimizer.load_state_dict(state["optimizer"])
    training.rng.bit_generator.state = state["rng"]
    training.episodes = state["episodes"]
    if state["experts"] is not None:
        training.experts = tuple(Decider(expert) for expert in state["experts"])
    training.best_weights = {name: value.cpu() for name, value in state["best_weights"].items()}
    training.best_score = state["best_score"]
    training.history = [(int(episodes), float(score)) for episodes, score in state["history"]]
    return training


def _source_to_dict(source: Source) -> dict[str, Any]:
    if isinstance(source, Curriculum):
        return {"curriculum": asdict(source)}
    if not isinstance(source, OneInstance):
        raise TypeError(f"a checkpoint cannot hold a {type(source).__name__}")
    plan = source.instance.plan
    return {
        "spec": asdict(source.instance.spec),
        "plan": {
            "name": plan.name,
            "stage_ranks": list(plan.stage_ranks),
            "num_microbatches": plan.num_microbatches,
            **{name: getattr(plan, name).tolist() for name in _PLAN_ARRAYS},
        },
        "variation": _variation_to_dict(source.variation),
    }


def _source_from_dict(values: dict[str, Any]) -> OneInstance | Curriculum:
    if "curriculum" in values:
        return Curriculum(**values["curriculum"])
    spec, plan = PipelineSpec(**values["spec"]), Schedule.from_arrays(**values["plan"])
    return OneInstance(
        instance=Instance.of(spec, plan), variation=_variation_from_dict(values["variation"])
    )


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
