"""What a stage that could move work costs while nothing moves, against the plain stage.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_modules

Ratios of processor time within one run, F, I and W of four layers; the sides take turns.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from conductor.migration.modules.convert import migratable
from conductor.migration.modules.loopback import LoopbackHelper
from conductor.runtime.deferred import WeightQueue, defer_weight_gradients
from conductor.runtime.gpt import GPTConfig, GPTStage
from conductor.runtime.llama import LlamaConfig, LlamaStage

LAYERS = 4
SIDES = ("plain", "no helper", "helper")


def stage(name, width, sequence):
    """Four layers, the same weights every time."""
    torch.manual_seed(0)
    heads = max(width // 32, 2)
    if name == "gpt":
        config = GPTConfig(num_layers=LAYERS, d_model=width, num_heads=heads, sequence=sequence)
        return GPTStage(config, LAYERS, is_first=False, is_last=False)
    config = LlamaConfig(
        num_layers=LAYERS, d_model=width, num_heads=heads, num_kv_heads=heads // 2,
        mlp_width=3 * width, sequence=sequence,
    )  # fmt: skip
    return LlamaStage(config, LAYERS, is_first=False, is_last=False)


def compare(name, width, sequence, repeats):
    """Median ratios to the plain stage, whose own time comes first, in ms."""
    sides = {}
    for side in SIDES:
        module, queue = stage(name, width, sequence), WeightQueue()
        if side != "plain":
            lending = migratable(module)
            lending.helper = LoopbackHelper() if side == "helper" else None
        defer_weight_gradients(module, queue)
        sides[side] = module, queue
    times = {side: [] for side in SIDES}
    x = torch.randn(2, sequence, width)
    for _ in range(repeats + 3):
        for side, (module, queue) in sides.items():
            inputs = x.clone().requires_grad_()
            start = time.thread_time()
            output = module(inputs)
            output.backward(output.detach())
            queue.take()()
            times[side].append(1e3 * (time.thread_time() - start))
    plain = times["plain"][3:]
    ratios = [
        statistics.median(a / b for a, b in zip(times[side][3:], plain, strict=True))
        for side in SIDES[1:]
    ]
    return statistics.median(plain), *ratios


def main(repeats):
    """One line a model and size."""
    torch.set_num_threads(1)
    print("| stage | plain ms | no helper | helper, nothing moves | more ms a layer |")
    print("| --- | --- | --- | --- | --- |")
    for name in ("gpt", "llama"):
        for width, sequence in ((64, 32), (256, 128), (512, 256)):
            ms, off, on = compare(name, width, sequence, repeats)
            more = (on - 1.0) * ms / LAYERS
            print(f"| {name} {width} x {sequence} | {ms:.1f} | {off:.3f} | {on:.3f} | {more:.2f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
