"""Checkpoints: training goes on exactly, layers that have moved included."""

import pytest

from conductor.errors import FormatError
from conductor.runtime.checkpoint import load_rank, schedule_from, schedule_state
from conductor.runtime.gpt import GPTConfig
from conductor.runtime.train import Training, TrainSettings
from conductor.schedules.registry import build
from tests.runtime.ranks import run_ranks
from tests.runtime.test_controller import FAST, propose


def interrupted(rank, folder, steps_before):
    """Losses of six steps, the training made anew from a checkpoint in between."""
    plan = build("zb-1p", FAST)
    settings = TrainSettings(
        config=GPTConfig(num_layers=6, d_model=16, sequence=8),
        replan=propose,
        replan_in_background=False,
    )
    training = Training(settings, plan, FAST)
    losses = [training.step()[0].loss for _ in range(steps_before)]
    layers = training.layers
    if steps_before < 6:
        training.save(folder)
        training = Training(settings, plan, FAST, resume=folder)
        assert training.layers == layers
        losses += [training.step()[0].loss for _ in range(6 - steps_before)]
    return losses, layers


def test_training_goes_on_bit_for_bit_from_a_checkpoint(tmp_path):
    (losses, _), _ = run_ranks(interrupted, 2, tmp_path, 6)
    (again, moved), _ = run_ranks(interrupted, 2, tmp_path, 4)
    assert again == losses
    assert moved == (2, 4)


def test_a_schedule_survives_as_plain_values():
    plan = build("zb-v", FAST)
    assert schedule_from(schedule_state(plan)) == plan


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(FormatError, match="cannot read the checkpoint"):
        load_rank(tmp_path, 0)
    (tmp_path / "rank-0.pt").write_text("nothing")
    with pytest.raises(FormatError, match="not a checkpoint"):
        load_rank(tmp_path, 0)
