"""Two pipelines side by side: gradients are those of one model on the batches of both."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from conductor.errors import InvalidScheduleError
from conductor.runtime.executor import ConductorSchedule
from conductor.runtime.replicas import check_replicas
from conductor.runtime.stage import wrap_stage
from conductor.schedules.registry import build
from tests.runtime.networks import LENGTH, ROWS, WIDTH, Block, batch, loss_of, network, reference
from tests.runtime.ranks import run_ranks
from tests.runtime.test_executor import spec_of


def gradients(net, batches, microbatches):
    """Mean over the batches of what each alone gives, by stage."""
    sums = []
    for x, target in batches:
        reference(net, x, target, microbatches)
        sums.append([[p.grad.clone() for p in module.parameters()] for module in net])
    return [[sum(parts) / len(sums) for parts in zip(*module, strict=True)]
            for module in zip(*sums, strict=True)]  # fmt: skip


def stages_on(net, plan, rank, group, mesh=None):
    example, stages = torch.empty(ROWS, LENGTH, WIDTH, device="meta"), []
    for index, module in enumerate(net):
        if plan.stage_ranks[index] == rank:
            module = copy.deepcopy(module)
            if mesh is not None:
                fully_shard(module.up, mesh=mesh)
                fully_shard(module, mesh=mesh)
            stages.append(wrap_stage(module, index, len(net), input_args=example,
                                     output_args=example, group=group))  # fmt: skip
    return stages


def replicate(rank, plan, mode):
    """Names of gradients that differ, in two optimizer steps of two accumulated steps each."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "pipeline"))
    replica, pipeline = mesh.get_coordinate()
    net, count = network(plan.num_stages), plan.num_microbatches
    wrong = []
    for sharded in (False, True) if mode == "static" else (False,):
        stages = stages_on(
            net, plan, pipeline, mesh["pipeline"].get_group(), mesh["replica"] if sharded else None
        )
        schedule = ConductorSchedule(
            stages, count, loss_of, plan=plan, mode=mode, timeout_s=60, accumulation_steps=2,
            data_parallel_group=None if sharded else mesh["replica"].get_group(),
        )  # fmt: skip
        for step in range(2):
            halves = [batch(2 * count, 10 * step + r) for r in range(2)]
            expected = gradients(net, halves, 2 * count)
            x, target = halves[replica]
            for part, wanted in zip(x.chunk(2), target.chunk(2), strict=True):
                schedule.step(*([part] if pipeline == 0 else []), target=wanted)
            for stage in stages:
                for (name, p), grad in zip(
                    stage.submod.named_parameters(), expected[stage.stage_index], strict=True
                ):
                    got = p.grad.full_tensor() if sharded else p.grad
                    if not torch.allclose(got, grad, rtol=1e-5, atol=1e-8):
                        wrong.append((sharded, step, stage.stage_index, name))
                stage.submod.zero_grad()
        schedule.close()
    return wrong


def test_gradients_are_averaged_over_replicas_plain_and_sharded():
    assert run_ranks(replicate, 4, build("zb-1p", spec_of(2, 4)), "static") == [[]] * 4


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), [("1f1b", "static"), ("zb-v", "static"),
                                            ("zb-v", "ready-first")])  # fmt: skip
def test_other_schedules(name, mode):
    assert run_ranks(replicate, 4, build(name, spec_of(2, 4)), mode) == [[]] * 4


def wrappers(rank):
    """What is said about wrappers that cannot be right."""
    example, said = torch.empty(ROWS, LENGTH, WIDTH, device="meta"), []
    mesh = init_device_mesh("cpu", (1,))
    partly, whole = Block(), Block()
    fully_shard(partly.up, mesh=mesh)
    fully_shard(whole, mesh=mesh)
    for module, group, in_order in (
        (nn.parallel.DistributedDataParallel(Block()), None, True),
        (partly, None, True),
        (whole, dist.group.WORLD, True),
        (whole, None, False),
    ):
        stage = wrap_stage(module, 0, 2, input_args=example, output_args=example)
        try:
            check_replicas(stage, group, in_order=in_order)
        except InvalidScheduleError as error:
            said.append(str(error))
    return said


def test_wrappers_that_reduce_at_the_wrong_time_are_refused():
    ((ddp, partly, both, late),) = run_ranks(wrappers, 1)
    assert "stage 0 is wrapped in DistributedDataParallel" in ddp
    assert "apply fully_shard to its whole module" in partly
    assert "leave data_parallel_group out" in both
    assert "its replicas must run alike: use mode static" in late
