"""Steps of torch's own pipeline runtime on real ranks, under torch's profiler, and of ours beside them."""

import time

import torch
from torch import nn

from conductor.runtime.executor import ConductorSchedule
from conductor.runtime.profiler import Profiler
from conductor.runtime.stage import wrap_stage
from conductor.runtime.torch_backend import torch_schedule

WIDTH, ROWS = 16, 4


class _Work(torch.autograd.Function):
    """Takes a while, as a device would: four ranks on two cores would measure each other."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        time.sleep(2.0 * ctx.seconds)
        return grad * 1.0, None


class Stage(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.up, self.down, self.seconds = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), seconds

    def forward(self, x):
        return self.down(_Work.apply(self.up(x), self.seconds))


def loss_of(output, target):
    return (output - target).square().mean()


def stages_of(plan, rank, seconds):
    example = torch.empty(ROWS, WIDTH, device="meta")
    return [
        wrap_stage(
            Stage(seconds[stage]), stage, plan.num_stages, input_args=example, output_args=example
        )
        for stage, owner in enumerate(plan.stage_ranks)
        if owner == rank
    ]


def profiled(rank, plan, seconds, folder, steps):
    """Writes `rank<r>.json.gz` of some steps of torch's runtime, each followed by one of ours.

    Returns:
        What our own profiler measured, by kind and stage.
    """
    theirs = torch_schedule(stages_of(plan, rank, seconds), plan, loss_fn=loss_of)
    ours = ConductorSchedule(
        stages_of(plan, rank, seconds), plan.num_microbatches, loss_of, plan=plan
    )
    profiler = Profiler(ours)
    x = torch.randn(plan.num_microbatches * ROWS, WIDTH)
    arguments = [x] if rank == 0 else []
    keywords = {"target": x} if plan.stage_ranks[-1] == rank else {}
    theirs.step(*arguments, **keywords)
    ours.step(*arguments, **keywords, return_outputs=False)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        for _ in range(steps):
            theirs.step(*arguments, **keywords)
            ours.step(*arguments, **keywords, return_outputs=False)
            profiler.record()
    seen.export_chrome_trace(f"{folder}/rank{rank}.json.gz")
    return dict(profiler.gather())
