"""A plan from a CSV file in a training loop as torchtitan writes it.

torchtitan's trainer asks its pipeline schedule for `step(inputs, target=..., losses=...)` on the first
rank and `step(target=..., losses=...)` on the others. A `ConductorSchedule` answers to the same calls.
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import conductor
from conductor.interop.torch_csv import read_torch_csv, write_torch_csv
from conductor.runtime.executor import ConductorSchedule
from conductor.runtime.gpt import (
    GPTConfig,
    gpt_stage,
    next_token_loss,
    spread_layers,
    stage_shapes,
)
from conductor.runtime.stage import wrap_stage

CONFIG = GPTConfig(num_layers=4, d_model=16, sequence=8, vocabulary=10)
MICROBATCHES, ROWS = 4, 2


def build_pipeline_schedule(plan, rank):
    """What a model's `pipelining_fn` gives the trainer: the schedule, its modules, first?, last?"""
    layers = spread_layers(CONFIG.num_layers, plan.num_stages)
    stages = []
    for index, owner in enumerate(plan.stage_ranks):
        if owner == rank:
            module = gpt_stage(CONFIG, index, layers)
            inputs, outputs = stage_shapes(CONFIG, index, plan.num_stages, ROWS)
            stages.append(
                wrap_stage(module, index, plan.num_stages, input_args=inputs, output_args=outputs)
            )
    schedule = ConductorSchedule(stages, plan.num_microbatches, next_token_loss, plan=plan)
    first, last = (owner == rank for owner in (plan.stage_ranks[0], plan.stage_ranks[-1]))
    return schedule, [stage.submod for stage in stages], first, last


def train(rank, folder):
    """One rank."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
    plan = read_torch_csv(f"{folder}/plan.csv")
    pp_schedule, model_parts, pp_has_first_stage, pp_has_last_stage = build_pipeline_schedule(
        plan, rank
    )
    optimizer = torch.optim.AdamW([p for part in model_parts for p in part.parameters()], lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for step in range(4):
        start = torch.randint(0, 10, (MICROBATCHES * ROWS, 1), generator=generator)
        tokens = (start + torch.arange(CONFIG.sequence + 1)) % 10
        inputs, labels = tokens[:, :-1], tokens[:, 1:]

        optimizer.zero_grad()
        targets, losses = (labels, []) if pp_has_last_stage else (None, None)
        if pp_has_first_stage:
            pp_schedule.step(inputs, target=targets, losses=losses)
        else:
            pp_schedule.step(target=targets, losses=losses)
        optimizer.step()
        if pp_has_last_stage:
            print(f"step {step}: loss {torch.mean(torch.stack(losses)):.4f}", flush=True)
    pp_schedule.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spec = conductor.PipelineSpec(
            num_ranks=2, num_microbatches=MICROBATCHES,
            forward_ms=1, backward_input_ms=1, backward_weight_ms=1,
        )  # fmt: skip
        # One row a rank, as `conductor plan --out plan.csv` writes it.
        write_torch_csv(conductor.plan(spec).best.schedule, Path(folder) / "plan.csv")
        mp.spawn(train, (folder,), nprocs=2)
