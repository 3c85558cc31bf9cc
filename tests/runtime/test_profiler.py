"""Measured specs: the times are those of the step, the memory that of autograd."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from conductor.problem.spec_file import load_spec
from conductor.runtime.activation_memory import activation_bytes
from conductor.runtime.executor import ConductorSchedule
from conductor.runtime.gpt import GPTConfig, GPTStage
from conductor.runtime.pace import Emulation
from conductor.runtime.profiler import Profiler
from conductor.schedules.registry import build
from tests.runtime.networks import batch, loss_of, network, stages_of
from tests.runtime.ranks import run_ranks
from tests.runtime.test_executor import spec_of


def measure(rank, plan, spec):
    stages = stages_of(network(plan.num_stages), plan, rank)
    schedule = ConductorSchedule(
        stages, plan.num_microbatches, loss_of, plan=plan, pace=Emulation(spec=spec), timeout_s=60
    )
    profiler = Profiler(schedule)
    x, target = batch(plan.num_microbatches, 0)
    for _ in range(2):
        schedule.step(*([x] if rank == 0 else []), target=target)
        profiler.record()
    return profiler.spec(name="measured", source="a test"), len(profiler.gather()["F", 0])


def test_the_spec_of_emulated_ranks_holds_at_least_the_emulated_times():
    spec = spec_of(2, 4, forward_ms=(6.0, 9.0), backward_weight_ms=4.0, transfer_ms=3.0)
    plan = build("zb-1p", spec)
    (measured, count), (other, _) = run_ranks(measure, 2, plan, spec)
    assert measured == other
    assert count == 2 * 4
    assert measured.stage_ranks == (0, 1)
    for name in ("forward_ms", "backward_input_ms", "backward_weight_ms"):
        assert (measured.per_stage(name) >= spec.per_stage(name) - 0.01).all()
    assert measured.link_ms[0] >= 3.0 - 0.01


def test_activation_memory_of_a_linear_layer_is_its_input():
    size, freed = activation_bytes(nn.Linear(64, 128, bias=False), torch.zeros(10, 64))
    # The output is alive too; W still needs the input and the output's gradient.
    assert size == 4 * (10 * 64 + 10 * 128)
    assert freed == 0.0


def test_checkpointing_holds_less():
    def stage(checkpointing):
        config = GPTConfig(d_model=32, checkpointing=checkpointing)
        return GPTStage(config, 3, is_first=False, is_last=False)

    x = torch.zeros(2, 32, 32)
    plain, _ = activation_bytes(stage(False), x)
    checkpointed, _ = activation_bytes(stage(True), x)
    assert 4 * x.nbytes <= checkpointed < plain / 3


def test_the_command_writes_a_spec_that_plans(tmp_path, capsys):
    from conductor.cli.app import main
    from conductor.planning.plan import plan

    path = tmp_path / "gpt.toml"
    arguments = (
        "--layers", 4, "--width", 16, "--sequence", 8, "--ranks", 2, "--steps", 1, "--out", path,
        "--json",
    )  # fmt: skip
    assert main(["profile", *map(str, arguments)]) == 0
    result = json.loads(capsys.readouterr().out)
    spec = load_spec(path)
    assert np.allclose(spec.per_stage("forward_ms"), result["forward_ms"])
    assert (spec.duration_ms > 0).all()
    assert plan(spec).best.timeline.makespan_ms > 0


def test_too_few_layers_are_refused(capsys):
    from conductor.cli.app import main

    assert main(["profile", "--layers", "2", "--ranks", "3"]) == 2
    assert "2 layers do not fill 3 stages" in capsys.readouterr().err


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
