"""Cases of real ranks that move work: small networks with attention and MLP, and their plain training."""

import copy
from collections import Counter

import numpy as np
import torch
from torch import nn

from conductor.migration.execution import MigrationRules, prepare
from conductor.migration.model import SimpleModel
from conductor.migration.modules.convert import migratable
from conductor.runtime.exchange.units import Units
from conductor.runtime.executor import ConductorSchedule
from conductor.runtime.gpt import GPTBlock, GPTConfig
from conductor.runtime.stage import wrap_stage
from tests.runtime.networks import LENGTH, ROWS, WIDTH, batch, loss_of, reference

CONFIG = GPTConfig(d_model=WIDTH, num_heads=4, sequence=LENGTH)
MODEL = SimpleModel(movable_weight=0.6, latency_ms=0.0, part_ms=0.0, parts=4)
EAGER = MigrationRules(min_gain=0.0, max_lenders=3)


def network(num_stages):
    torch.manual_seed(1)
    return nn.ModuleList(GPTBlock(CONFIG) for _ in range(num_stages))


class Uneven:
    """Random times of actions, unlike what was expected: some helps are refused, some are late."""

    def __init__(self, most_ms=3.0):
        self._most_ms = most_ms

    def targets_ms(self, schedule, step):
        rng = np.random.default_rng([11, step])
        return rng.uniform(0.0, self._most_ms, schedule.num_actions)

    def lag_ms(self, schedule):
        return {}


def moving_schedule(rank, net, plan, spec, *, rules=EAGER, model=MODEL, held=(), **options):
    """A schedule whose ranks move work, and its stages."""
    example = torch.empty(ROWS, LENGTH, WIDTH, device="meta")
    modules = {
        s: copy.deepcopy(net[s]) for s, owner in enumerate(plan.stage_ranks) if owner == rank
    }
    lendings = {s: migratable(module, stage=s) for s, module in modules.items()}
    stages = [
        wrap_stage(module, s, len(net), input_args=example, output_args=example)
        for s, module in modules.items()
    ]
    options = {"timeout_s": 60.0, "lends": True, "pace": Uneven(), "spec": spec, **options}
    schedule = ConductorSchedule(stages, plan.num_microbatches, loss_of, plan=plan, **options)
    execution = "static" if schedule.mode == "static" else "ready-first"
    prepared = prepare(spec, schedule.plan, model=model, rules=rules, execution=execution)
    units = Units(lendings=lendings, parts=model.parts, held=dict(held))
    schedule.exchange.set_migration(prepared, lendings, units)
    return schedule, stages


def one_step(schedule, stages, net, seed):
    """One step of a rank: the largest relative error of its gradients, and what became of its requests."""
    plan = schedule.plan
    x, target = batch(plan.num_microbatches, seed)
    reference(net, x, target, plan.num_microbatches)
    for stage in stages:
        stage.submod.zero_grad()
    first, last = (plan.stage_ranks[end] == schedule.rank for end in (0, -1))
    schedule.step(*([x] if first else []), target=target if last else None)
    errors = [0.0]
    for stage in stages:
        for expected, got in zip(
            net[stage.stage_index].parameters(), stage.submod.parameters(), strict=True
        ):
            scale = expected.grad.norm() or 1.0
            errors.append(float((expected.grad - got.grad).norm() / scale))
    return max(errors), Counter(help_.outcome for help_ in schedule.exchange.report.helps)
