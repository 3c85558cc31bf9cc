"""Moving layers between ranks: how many each should have, and the move itself, in the midst of training."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from conductor.problem.spec import PipelineSpec
from conductor.runtime.collectives import gather
from conductor.runtime.gpt import GPTBlock, GPTConfig, GPTStage


def level_layers(spec: PipelineSpec, layers: Sequence[int]) -> tuple[int, ...]:
    """The split of equal layers with the least time on the fullest rank.

    Args:
        spec: one stage a rank, its times with the layers as they are.
        layers: of each stage, now.
    """
    work_ms = spec.duration_ms[[0, 1, 2]].sum(axis=0)
    layer_ms = work_ms / np.asarray(layers)
    counts = np.ones(len(layers), np.int64)
    for _ in range(sum(layers) - len(layers)):
        counts[np.argmin((counts + 1) * layer_ms)] += 1
    return tuple(counts.tolist())


def near_level(
    spec: PipelineSpec, layers: Sequence[int], *, tolerance: float = 0.03, at_most: int = 16
) -> list[tuple[int, ...]]:
    """`level_layers`, and splits one layer away from it that are as level up to what measuring is worth.

    Which rank has the layer more decides how the step fills and drains; hundredths in its time do not.

    Args:
        spec: as of `level_layers`.
        layers: of each stage, now.
        tolerance: by how much more, of the time of the fullest rank.
        at_most: so many splits, the most level first.
    """
    level = np.array(level_layers(spec, layers))
    layer_ms = spec.duration_ms[[0, 1, 2]].sum(axis=0) / np.asarray(layers)
    limit = (1.0 + tolerance) * (level * layer_ms).max()
    found: dict[tuple[int, ...], float] = {tuple(level.tolist()): 0.0}
    for giver, taker in itertools.permutations(range(len(level)), 2):
        split = level.copy()
        split[giver] -= 1
        split[taker] += 1
        fullest = float((split * layer_ms).max())
        if split[giver] > 0 and fullest <= limit:
            found[tuple(split.tolist())] = fullest
    return sorted(found, key=lambda split: found[split])[:at_most]


def with_layers(spec: PipelineSpec, old: Sequence[int], new: Sequence[int]) -> PipelineSpec:
    """The spec after layers have moved: times and memory of a stage go with its number of layers."""
    share = np.asarray(new) / np.asarray(old)
    fields = ("forward_ms", "backward_input_ms", "backward_weight_ms", "activation_memory")
    return spec.with_(**{name: tuple((spec.per_stage(name) * share).tolist()) for name in fields})


def move_layers(
    module: GPTStage,
    optimizer: torch.optim.Optimizer,
    config: GPTConfig,
    old: Sequence[int],
    new: Sequence[int],
    group: dist.ProcessGroup | None = None,
) -> None:
    """Moves blocks with their weights and optimizer state; every rank (one stage each) calls it.

    The optimizer has one group of parameters. Training goes on as if nothing had moved, bit for bit.

    Args:
        module: this rank's stage; changed in place, to be wrapped again.
        optimizer: of its parameters; changed in place.
        config: of the model.
        old: layers of each stage before.
        new: the same after.
        group: the pipeline's.
    """
    rank = dist.get_rank(group)
    before, after = _range(old, rank), _range(new, rank)
    blocks = dict(zip(before, module.blocks, strict=True))
    leaving = {
        layer: (
            blocks[layer].state_dict(),
            [optimizer.state.pop(p, {}) for p in blocks[layer].parameters()],
        )
        for layer in before
        if layer not in after
    }
    rows = gather(leaving, group)
    arriving = {layer: moved for row in rows for layer, moved in row.items() if layer in after}
    for layer, (weights, states) in arriving.items():
        with torch.random.fork_rng(devices=[]):  # its initial weights are drawn in vain
            block = GPTBlock(config).to(config.dtype)
        block.load_state_dict(weights)
        blocks[layer] = block
        for parameter, state in zip(block.parameters(), states, strict=True):
            if state:
                optimizer.state[parameter] = state
    module.blocks = torch.nn.ModuleList(blocks[layer] for layer in after)
    optimizer.param_groups[0]["params"] = list(module.parameters())


def _range(layers: Sequence[int], stage: int) -> range:
    starts = [0, *itertools.accumulate(layers)]
    return range(starts[stage], starts[stage + 1])
