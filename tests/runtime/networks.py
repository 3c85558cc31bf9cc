"""A small residual network in stages, and its training without a pipeline."""

import copy

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from conductor.runtime.stage import wrap_stage

WIDTH, LENGTH, ROWS = 8, 3, 2
"""Sizes of a micro-batch: rows, length, width."""


class Block(nn.Module):
    def __init__(self, checkpointed=False):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH),
        )  # fmt: skip
        self.checkpointed, self.forwards = checkpointed, 0

    def body(self, x):
        self.forwards += 1
        return x + self.down(torch.tanh(self.up(self.norm(x))))

    def forward(self, x):
        if self.checkpointed and torch.is_grad_enabled():
            return checkpoint(self.body, x, use_reentrant=False)
        return self.body(x)


def network(num_stages, dtype=torch.float32, checkpointed=False):
    torch.manual_seed(0)
    return nn.ModuleList(Block(checkpointed) for _ in range(num_stages)).to(dtype)


def stages_of(net, schedule, rank, dtype=torch.float32):
    example = torch.empty(ROWS, LENGTH, WIDTH, dtype=dtype, device="meta")
    return [
        wrap_stage(copy.deepcopy(module), index, len(net), input_args=example, output_args=example)
        for index, module in enumerate(net)
        if schedule.stage_ranks[index] == rank
    ]


def loss_of(output, target):
    return (output.float() - target.float()).square().mean()


def batch(num_microbatches, seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    shape = (num_microbatches * ROWS, LENGTH, WIDTH)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]


def reference(net, x, target, num_microbatches):
    """Losses by micro-batch; leaves gradients, divided by the number of micro-batches."""
    net.zero_grad()
    losses = []
    for part, wanted in zip(
        x.tensor_split(num_microbatches), target.tensor_split(num_microbatches), strict=True
    ):
        for module in net:
            part = module(part)
        loss = loss_of(part, wanted)
        loss.backward()
        losses.append(loss.detach())
    for parameter in net.parameters():
        parameter.grad.div_(num_microbatches)
    return losses


def differences(net, stages):
    """Names of the parameters of a rank's stages whose gradients differ from the reference's."""
    return [
        f"{stage.stage_index}.{name}"
        for stage in stages
        for (name, expected), (_, got) in zip(
            net[stage.stage_index].named_parameters(), stage.submod.named_parameters(), strict=True
        )
        if got.grad is None or not torch.equal(expected.grad, got.grad)
    ]
