"""`conductor profile SCRIPT`: a program that knows nothing of it is measured."""

import json
import textwrap

import pytest

from conductor.cli.app import main
from conductor.problem.spec_file import load_spec

PROGRAM = textwrap.dedent(
    """
    import sys
    import torch
    import torch.distributed as dist
    from torch import nn
    import conductor
    from conductor.runtime.executor import ConductorSchedule
    from conductor.runtime.stage import wrap_stage
    from conductor.schedules.registry import build

    dist.init_process_group("gloo")
    rank, steps = dist.get_rank(), int(sys.argv[1])
    spec = conductor.PipelineSpec(
        num_ranks=2, num_microbatches=4, forward_ms=1, backward_input_ms=1, backward_weight_ms=1
    )
    shape = torch.empty(256, 256, device="meta")
    layer = nn.Linear(256, 256, bias=False)
    stage = wrap_stage(layer, rank, 2, input_args=shape, output_args=shape)
    schedule = ConductorSchedule([stage], 4, nn.functional.mse_loss, plan=build("1f1b", spec))
    x = torch.zeros(1024, 256)
    for step in range(steps):
        schedule.step(*([x] if rank == 0 else []), target=x)
    print("the end", flush=True)
    schedule.barrier()
    """
)


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(PROGRAM)
    return path


def test_a_program_is_measured_and_ended(program, tmp_path, capfd):
    out = tmp_path / "mine.toml"
    arguments = ["profile", str(program), "--ranks", "2", "--steps", "2", "--out", str(out)]
    assert main([*arguments, "--json", "--", "1000000"]) == 0
    printed = capfd.readouterr()
    assert "the end" not in printed.err
    result, spec = json.loads(printed.out), load_spec(out)
    assert (spec.name, spec.num_ranks, spec.num_microbatches) == ("mine", 2, 4)
    # 1F1B runs both backwards in one, and yet they are told apart.
    assert (spec.duration_ms > 0.0).all()
    assert {"F", "B", "W", "transfer"} <= result["spread"].keys()
    assert spec.link_ms[0] > 0.0
    # Input and output live; the input and the output's gradient wait for W.
    assert spec.activation_memory == (2 * 4 * 256 * 256,) * 2
    assert spec.freed_at_backward_input == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("2",), "ended before a ConductorSchedule had run 6 training steps"),
        ((), "ended with code 1"),
    ],
)
def test_a_program_that_ends_too_early_is_one_sentence(program, arguments, message, capfd):
    assert main(["profile", str(program), "--ranks", "2", "--", *arguments]) == 2
    assert message in capfd.readouterr().err.splitlines()[-1]


def test_a_program_that_is_not_there_is_one_sentence(tmp_path, capsys):
    assert main(["profile", str(tmp_path / "train.py")]) == 2
    assert capsys.readouterr().err == f"conductor: there is no script {tmp_path / 'train.py'}\n"
