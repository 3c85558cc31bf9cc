"""Train a small Llama on two ranks, of which one is slow: the other one does a part of its attention.

The ranks stand for devices: each action is stretched to the times of a spec, on rank 1 to twice as much.
"""

import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import conductor
from conductor.migration.model import SimpleModel
from conductor.migration.modules.convert import migratable
from conductor.runtime.executor import ConductorSchedule
from conductor.runtime.gpt import next_token_loss, stage_shapes
from conductor.runtime.llama import LlamaConfig, llama_stage
from conductor.runtime.migration.control import MigrationControl
from conductor.runtime.pace import Emulation, Straggler
from conductor.runtime.stage import wrap_stage
from conductor.runtime.sums_text import ALPHABET, sums_batch
from conductor.schedules.registry import build

CONFIG = LlamaConfig(
    d_model=32, num_kv_heads=4, mlp_width=64, sequence=16, vocabulary=len(ALPHABET)
)
ROWS, MICROBATCHES, STEPS = 2, 6, 5


def train(rank, meeting_place):
    """One rank."""
    dist.init_process_group("gloo", init_method=meeting_place, rank=rank, world_size=2)
    torch.set_num_threads(1)
    spec = conductor.PipelineSpec(
        num_ranks=2, num_microbatches=MICROBATCHES,
        forward_ms=20, backward_input_ms=20, backward_weight_ms=14, transfer_ms=0.5,
    )  # fmt: skip
    plan = build("zb-1p", spec)

    module = llama_stage(CONFIG, rank, (2, 2))
    lending = migratable(module, stage=rank)  # its heads and the columns of its MLPs can move
    inputs, outputs = stage_shapes(CONFIG, rank, 2, ROWS)
    stage = wrap_stage(module, rank, 2, input_args=inputs, output_args=outputs)
    schedule = ConductorSchedule(
        [stage], MICROBATCHES, next_token_loss, plan=plan, lends=True,
        pace=Emulation(spec=spec, stragglers=[Straggler(rank=1, factor=2.0)]),
    )  # fmt: skip
    control = MigrationControl(
        schedule, spec, model=SimpleModel(parts=CONFIG.num_kv_heads), lendings={rank: lending}
    )

    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    rng = np.random.default_rng(0)
    for step in range(STEPS):
        tokens, targets = sums_batch(ROWS * MICROBATCHES, CONFIG.sequence, rng)
        losses = []
        schedule.step(*([tokens] if rank == 0 else []), target=targets, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        times = schedule.timeline(spec)
        moved = control.after_step(times)
        if losses:
            print(
                f"step {step}: loss {torch.stack(losses).mean():.4f}, {times.makespan_ms:.0f} ms,"
                f" {moved.helps} helps moved {moved.bytes / 1e3:.0f} KB",
                flush=True,
            )
    schedule.barrier()
    schedule.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (f"file://{folder}/ranks",), nprocs=2)
