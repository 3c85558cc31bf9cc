"""Train a model of your own under a plan, in plain PyTorch: two ranks, two stages each, in a V.

On a real machine, start the ranks with `torchrun` and leave the last lines out.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import conductor
from conductor.runtime.executor import ConductorSchedule
from conductor.runtime.stage import wrap_stage
from conductor.schedules.registry import build

WIDTH, ROWS, MICROBATCHES = 16, 4, 4


def train(rank, meeting_place):
    """One rank."""
    dist.init_process_group("gloo", init_method=meeting_place, rank=rank, world_size=2)
    spec = conductor.PipelineSpec(
        num_ranks=2, num_microbatches=MICROBATCHES,
        forward_ms=1, backward_input_ms=1, backward_weight_ms=1,
    )  # fmt: skip
    plan = build("zb-v", spec)

    # This rank's stages, with the shape of one micro-batch's input and output.
    example = torch.empty(ROWS, WIDTH, device="meta")
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in plan.stage_ranks]
    stages = [
        wrap_stage(layer, index, len(layers), input_args=example, output_args=example)
        for index, layer in enumerate(layers)
        if plan.stage_ranks[index] == rank
    ]
    schedule = ConductorSchedule(
        stages, MICROBATCHES, nn.functional.mse_loss, plan=plan, mode="ready-first", spec=spec
    )

    optimizer = torch.optim.SGD([p for s in stages for p in s.submod.parameters()], lr=0.5)
    x = torch.randn(ROWS * MICROBATCHES, WIDTH)
    target = x.roll(1, dims=1).tanh()
    is_first, is_last = plan.stage_ranks[0] == rank, plan.stage_ranks[-1] == rank
    for step in range(5):
        losses = []
        schedule.step(*([x] if is_first else []), target=target if is_last else None, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        if is_last:
            print(f"step {step}: loss {torch.stack(losses).mean():.4f}", flush=True)
    times = schedule.timeline(spec)
    if rank == 0:
        print(f"bubble ratio of the last step: {times.bubble_ratio:.3f}", flush=True)
    schedule.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (f"file://{folder}/ranks",), nprocs=2)
