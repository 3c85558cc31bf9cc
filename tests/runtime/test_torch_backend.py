"""The same plan in torch's own runtime: equal gradients."""

import pytest
import torch

from conductor.errors import InvalidScheduleError
from conductor.interop.torch_csv import write_torch_csv
from conductor.runtime.torch_backend import torch_schedule
from conductor.schedules.registry import build
from tests.runtime.networks import batch, differences, loss_of, network, reference, stages_of
from tests.runtime.ranks import run_ranks
from tests.runtime.test_executor import spec_of


def train(rank, plan, source):
    net = network(plan.num_stages)
    stages = stages_of(net, plan, rank)
    schedule = torch_schedule(stages, source, num_microbatches=4, loss_fn=loss_of)
    x, target = batch(4, 0)
    expected = reference(net, x, target, 4)
    losses = []
    last = plan.stage_ranks[-1] == rank
    schedule.step(*([x] if rank == 0 else []), target=target if last else None, losses=losses)
    wrong = differences(net, stages)
    if last and not all(torch.equal(a, b) for a, b in zip(expected, losses, strict=True)):
        wrong.append("losses")
    return wrong


@pytest.mark.parametrize("name", ["zb-1p", "zb-v"])
@pytest.mark.parametrize("from_file", [False, True])
def test_gradients_equal_those_without_a_pipeline(tmp_path, name, from_file):
    plan = build(name, spec_of(2, 4))
    path = tmp_path / "plan.csv"
    write_torch_csv(plan, path)
    assert run_ranks(train, 2, plan, str(path) if from_file else plan) == [[], []]


def test_a_file_needs_the_number_of_micro_batches(tmp_path):
    with pytest.raises(InvalidScheduleError, match="number of micro-batches"):
        torch_schedule([], tmp_path / "plan.csv")
