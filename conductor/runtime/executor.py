"""`ConductorSchedule`: a plan as a schedule object like those of `torch.distributed.pipelining`."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage

from conductor.errors import InvalidScheduleError, RankError
from conductor.ir.action import Action
from conductor.ir.schedule import FloatArray, Schedule
from conductor.ir.validate import validate
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.runtime import script_profile, torch_shim
from conductor.runtime.clocks import clock_offsets_ms, machine, merged
from conductor.runtime.collectives import barrier, gather
from conductor.runtime.cuda_links import CudaWatch
from conductor.runtime.dispatch import Arrival, Dispatcher, RankPlan, rank_plan
from conductor.runtime.exchange.exchange import Exchange
from conductor.runtime.faults import Alarm
from conductor.runtime.links import Shapes
from conductor.runtime.order import Order, PlannedOrder, PolicyOrder
from conductor.runtime.pace import Pace
from conductor.runtime.policy import Policy, RankPolicy
from conductor.runtime.replicas import check_replicas, reduce_gradients
from conductor.runtime.step import Batch, Step, StepTimes
from conductor.runtime.transport import open_links
from conductor.simulator.simulate import timeline
from conductor.simulator.timeline import Timeline

Mode = Literal["static", "ready-first", "policy"]
_serial = itertools.count()


class ConductorSchedule:
    """Runs a plan on this rank's stages, with the gradients of the un-pipelined model, bit for bit.

    Every rank of the pipeline's group makes one, at the same place of the program. Its links are gloo
    between CPUs and NCCL between GPUs (untested).

    Args:
        stages: this rank's stages, from `wrap_stage` or with static `input_args` and `output_args`.
        n_microbatches: micro-batches in a step; the plan's.
        loss_fn: of the last stage's output and the target, one micro-batch each; None has no backward.
        plan: the order of every rank.
        mode: `static`, or `ready-first`: an action whose inputs are there may run before a planned one
            whose inputs are late, within the memory limit; or `policy`, which decides about each action.
        patience: a planned action is late once the rank has waited for it this share of a forward's time
            longer than the plan expects.
        spec: expected times, activation memory and limits, for ready-first and a policy; None, for
            ready-first: expect no waiting, and hold it to the plan's own peak of memory.
        policy: for its mode, `LearnedPolicy` of `conductor.rl.dispatcher`. It parts full backwards.
        scale_grads: divide the gradients by the number of micro-batches, for losses that are means.
        data_parallel_group: this rank's replicas, over which gradients are averaged once an optimizer step.
            Modules with `fully_shard` need none, and `static`.
        accumulation_steps: steps for each optimizer step; the gradients are scaled once, after the last.
        pace: stretches the actions (emulated devices).
        timeout_s: longest wait for a message before the step fails on every rank.
        first_step: number of the first step, when a training goes on; the pace and reports count from it.
        lends: ranks may do parts of each other's actions, as `exchange.set_migration` says.

    Raises:
        InvalidScheduleError: the plan is no valid schedule or is not for these stages.
        RankError: the ranks differ in their plan or their version of torch.
    """

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        *,
        plan: Schedule,
        mode: Mode = "static",
        patience: float = 0.2,
        spec: PipelineSpec | None = None,
        policy: Policy | None = None,
        scale_grads: bool = True,
        data_parallel_group: dist.ProcessGroup | None = None,
        accumulation_steps: int = 1,
        pace: Pace | None = None,
        timeout_s: float = 300.0,
        first_step: int = 0,
        lends: bool = False,
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, not {mode!r}")
        if mode == "policy" and (policy is None or spec is None):
            raise ValueError("mode policy needs a policy and a spec")
        self._mode, self._replicas = mode, data_parallel_group
        _check_stages(stages, self._replicas, in_order=self._mode == "static")
        self._stages = {stage.stage_index: stage for stage in stages}
        group = stages[0].group or dist.group.WORLD
        assert group is not None
        self._global_ranks = dist.get_process_group_ranks(group)
        self.rank, num_ranks = stages[0].group_rank, len(self._global_ranks)
        self._loss_fn, self._patience, self._spec = loss_fn, patience, spec
        self._policy = policy if mode == "policy" else None
        self._decider: RankPolicy | None = None
        self._lends, self._in_order = lends, mode == "static" and not lends
        self._scale_grads, self._accumulation_steps = scale_grads, accumulation_steps
        self._pace = pace
        self.group = group
        name = f"conductor/{'-'.join(map(str, self._global_ranks))}/{next(_serial)}"
        self._alarm = Alarm(torch_shim.default_store(), name, self.rank, num_ranks, timeout_s)
        self._prepared: tuple[int, bool] | None = None
        self._num_steps, self._num_accumulated, self._microbatches = first_step, 0, 0
        self._forward_ns: float | None = None
        self._schedule: Schedule | None = None
        self._failed = False
        self.times: StepTimes | None = None
        self.set_plan(plan, n_microbatches)
        self._links = open_links(
            name, plan.stage_ranks, self.rank,
            device=stages[0].device, in_order=self._in_order, shapes_of=self._shapes_of,
            timeout_s=timeout_s,
        )  # fmt: skip
        self.exchange = (
            Exchange(name, self.rank, num_ranks, self._links.inbox, self._alarm, stages[0].device)
            if lends
            else None
        )
        self._watch = CudaWatch() if stages[0].device.type == "cuda" else None
        self._profile = script_profile.started(self)

    @property
    def plan(self) -> Schedule:
        """The plan in force."""
        assert self._schedule is not None
        return self._schedule

    @property
    def actions(self) -> tuple[Action, ...]:
        """This rank's actions of a training step, in plan order, as `times` has them."""
        return self._rank_plans[True].actions

    @property
    def stages(self) -> tuple[PipelineStage, ...]:
        """This rank's stages."""
        return tuple(self._stages.values())

    @property
    def mode(self) -> Mode:
        """How the plan is executed."""
        return self._mode

    @property
    def num_steps(self) -> int:
        """Number of the next step; evaluations count."""
        return self._num_steps

    @property
    def boundaries(self) -> dict[int, tuple[tuple[int, ...], torch.dtype]]:
        """Of this rank's stages: what one micro-batch's activations are like where a stage begins or ends."""
        found = {}
        for index, stage in self._stages.items():
            shapes = [
                *(s[:2] for s in torch_shim.input_shapes(stage)),
                *torch_shim.output_shapes(stage),
            ]
            found[index] = next(shape for shape in shapes if shape[1].is_floating_point)
        return found

    def set_plan(
        self,
        plan: Schedule,
        n_microbatches: int | None = None,
        *,
        spec: PipelineSpec | None = None,
    ) -> None:
        """Changes the plan from the next step on; every rank calls it between the same two steps.

        Args:
            plan: the order of every rank.
            n_microbatches: the plan's.
            spec: expected times from now on; None keeps those there are.

        Raises:
            InvalidScheduleError: the plan is not valid, or places the stages otherwise.
            RankError: other ranks were given another plan.
        """
        validate(plan)
        self._spec = spec or self._spec
        if self._policy is not None:
            plan = self._policy.runs(plan)
        if n_microbatches not in (None, plan.num_microbatches):
            raise InvalidScheduleError(
                f"{plan.name} has {plan.num_microbatches} micro-batches, not {n_microbatches}"
            )
        self._agree(plan)
        self._schedule = plan
        self._rank_plans: dict[bool, RankPlan] = {
            has_backward: rank_plan(plan, self.rank, self._spec, forward_only=not has_backward)
            for has_backward in (True, False)
        }
        if self._policy is not None and self._spec is not None:
            self._decider = self._policy.for_rank(self._spec, plan, self.rank)
        self._planned_gaps = self._find_gaps(plan) if self._mode == "ready-first" else None
        self.times = None

    def set_pace(self, pace: Pace | None) -> None:
        """Changes how long actions take at least, from the next step on."""
        self._pace = pace

    def replace_stages(self, stages: Sequence[PipelineStage]) -> None:
        """Other stages in place of the same indices, as when layers have moved between ranks.

        Raises:
            InvalidScheduleError: the indices differ, or a stage cannot be run.
        """
        _check_stages(stages, self._replicas, in_order=self._mode == "static")
        indices = [stage.stage_index for stage in stages]
        if sorted(indices) != sorted(self._stages):
            raise InvalidScheduleError(f"stages {indices} cannot replace {sorted(self._stages)}")
        self._stages = {stage.stage_index: stage for stage in stages}
        self._prepared = None

    def step(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Tensor] | None = None,
        return_outputs: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Runs one training step on a whole batch.

        Args:
            args: inputs of the first stage; other ranks pass none.
            target: for the loss; the last stage's rank passes it.
            losses: emptied and filled with the loss of each micro-batch, where the last stage is.
            return_outputs: whether to give the last stage's outputs.
            kwargs: for every stage.

        Returns:
            The outputs of the whole batch on the last stage's rank, else None.

        Raises:
            RankError: a rank cannot go on; every rank raises it.
        """
        if self._loss_fn is not None and not torch.is_grad_enabled():
            raise RuntimeError("step() needs gradients enabled; eval() does not")
        outputs = self._run(
            args, kwargs, target, losses, return_outputs, has_backward=self._loss_fn is not None
        )
        self._num_accumulated += 1
        self._microbatches += self.plan.num_microbatches
        if self._num_accumulated == self._accumulation_steps:
            if self._loss_fn is not None:
                reduce_gradients(self._stages.values(), self._replicas)
                if self._scale_grads:
                    self._scale(self._microbatches)
            self._num_accumulated = self._microbatches = 0
        if self._profile is not None:
            self._profile.after_step()
        return outputs

    def eval(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Tensor] | None = None,
        return_outputs: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Runs the forwards only, without gradients; leaves gradients alone. Otherwise as `step`."""
        with torch.no_grad():
            return self._run(args, kwargs, target, losses, return_outputs, has_backward=False)

    def timeline(self, spec: PipelineSpec) -> Timeline:
        """The last training step as measured, on every rank; every rank calls it.

        Times are from the first start of an action. Ranks of one machine share a clock; those of several
        are put on one by the messages between them.

        Raises:
            RankError: no training step has run yet.
        """
        if self.times is None:
            raise RankError("no training step has run yet, so there is no timeline")
        times = self.times
        rows = gather((times.start_ns, times.end_ns, times.transfers, machine()), self.group)
        offsets = clock_offsets_ms(
            self.plan.stage_ranks, merged(row[2] for row in rows), [row[3] for row in rows]
        )
        starts, ends = (
            np.concatenate(
                [np.subtract(row[i], 1e6 * a) for row, a in zip(rows, offsets, strict=True)]
            )
            for i in (0, 1)
        )
        first = starts.min()
        return Timeline.measured(spec, self.plan, (starts - first) / 1e6, (ends - first) / 1e6)

    def close(self) -> None:
        """Ends the links and their threads; no step can follow. Not needed at the end of a program."""
        if self.exchange is not None:
            self.exchange.close()
        self._links.close()
        self._failed = True

    def barrier(self) -> None:
        """Waits for all ranks."""
        barrier(self.group)

    def _run(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        target: Any,
        losses: list[Tensor] | None,
        return_outputs: bool,
        *,
        has_backward: bool,
    ) -> Any:
        if self._failed:
            raise RankError(f"rank {self.rank} has failed in an earlier step, or was closed")
        count = self.plan.num_microbatches
        number, self._num_steps = self._num_steps, self._num_steps + 1
        step = None
        try:
            self._prepare(count, has_backward)
            batch = self._split(args, kwargs, target, count)
            step = self._start(number, batch, has_backward=has_backward)
            step.run()
        except BaseException as error:
            self._failed = True
            doing = f"prepares step {number}" if step is None else step.describe()
            raise self._alarm.report_error(error, doing, self._links.abort) from error
        if has_backward:
            self._keep(step.times)
        if self.plan.stage_ranks[-1] != self.rank:
            return None
        if losses is not None:
            losses[:] = [step.losses[m] for m in sorted(step.losses)]
        outputs = [step.outputs[m] for m in range(count)]
        return torch_shim.merge(outputs) if return_outputs else None

    def _start(self, number: int, batch: Batch, *, has_backward: bool) -> Step:
        plan = self._rank_plans[has_backward]
        lag_ms, targets_ns = self._emulate(number, has_backward)
        self._links.expect(plan.senders, lag_ms)
        return Step(
            number=number,
            plan=plan,
            stage_ranks=self.plan.stage_ranks,
            stages=self._stages,
            batch=batch,
            loss_fn=self._loss_fn,
            links=self._links,
            watch=self._watch,
            alarm=self._alarm,
            targets_ns=targets_ns,
            order_of=lambda dispatcher: self._order(dispatcher, plan),
            has_backward=has_backward,
            exchange=self._lending(number) if has_backward else None,
        )

    def _lending(self, number: int) -> Exchange | None:
        """The exchange, where work may move in this step."""
        exchange = self.exchange
        if exchange is None or exchange.migration is None:
            return None
        pace, program = self._pace, exchange.migration.program
        realised = None if pace is None else pace.targets_ms(self.plan, number) - program.send_ms
        exchange.begin_step(number, realised)
        return exchange

    def _split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], target: Any, count: int
    ) -> Batch:
        arguments, keywords = torch_shim.split(args, kwargs, count)
        if len(arguments) != count:
            raise ValueError(
                f"the batch gives {len(arguments)} micro-batches, the plan has {count}"
            )
        targets = None if target is None else torch.tensor_split(target, count)
        return Batch(args=arguments, kwargs=keywords, targets=targets)

    def _prepare(self, count: int, has_backward: bool) -> None:
        for stage in self._stages.values():
            stage.clear_runtime_states()
            if self._prepared != (count, has_backward):
                torch_shim.prepare(stage, count, has_backward=has_backward)
        self._prepared = count, has_backward

    def _emulate(
        self, number: int, has_backward: bool
    ) -> tuple[dict[int, float], list[int] | None]:
        """Lags of the links and times of this rank's actions, where a pace is set."""
        if self._pace is None:
            return {}, None
        targets: FloatArray = self._pace.targets_ms(self.plan, number)
        own = slice(*self.plan.rank_offsets[self.rank : self.rank + 2].tolist())
        kept = targets[own]
        if not has_backward:
            kept = kept[self.plan.kinds[own] == Kind.F]
        return self._pace.lag_ms(self.plan), (kept * 1e6).astype(np.int64).tolist()

    def _order(self, dispatcher: Dispatcher, plan: RankPlan) -> Order:
        """Who decides about a step; an evaluation goes by the plan."""
        if self._decider is not None and plan is self._rank_plans[True]:
            return PolicyOrder(self._decider, time.perf_counter_ns())
        return PlannedOrder(dispatcher, self._patience_ns(plan))

    def _patience_ns(self, plan: RankPlan) -> list[int] | None:
        """How long each action may keep the rank waiting: as the plan expects, and a share of a forward.

        The plan's times count in units of the forwards that the last step measured. Nothing waits in
        the first step, and an evaluation goes by the plan's order alone.
        """
        if self._mode == "static":
            return None
        if (
            self._forward_ns is None
            or self._planned_gaps is None
            or plan is not self._rank_plans[True]
        ):
            return [0] * len(plan.actions)
        gaps, forward = self._planned_gaps
        waits: list[int] = (
            ((gaps / forward + self._patience) * self._forward_ns).astype(int).tolist()
        )
        return waits

    def _keep(self, times: StepTimes) -> None:
        """Keeps what a training step measured."""
        self.times = times
        is_forward = np.array([action.kind is Kind.F for action in self.actions])
        self._forward_ns = float(np.subtract(times.end_ns, times.start_ns)[is_forward].mean())

    def _find_gaps(self, plan: Schedule) -> tuple[FloatArray, float]:
        """Idle time that the plan expects before each action of this rank, and its mean forward."""
        if self._spec is None:
            return np.zeros(len(self._rank_plans[True].actions)), 1.0
        times = timeline(self._spec, plan)
        own = slice(*plan.rank_offsets[self.rank : self.rank + 2].tolist())
        start, end = times.start_ms[own], times.end_ms[own]
        forwards = (end - start)[plan.kinds[own] == Kind.F]
        return start - np.concatenate([[0.0], end[:-1]]), max(float(forwards.mean()), 1e-9)

    def _scale(self, divisor: int) -> None:
        for stage in self._stages.values():
            for parameter in stage.submod.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(divisor)

    def _agree(self, plan: Schedule) -> None:
        """Refuses, on every rank, plans, settings or versions that differ, and stages elsewhere."""
        mine = {
            "plan": plan_hash(plan),
            "mode": self._mode,
            "lending": self._lends,
            "accumulation_steps": self._accumulation_steps,
            "version of torch": torch.__version__,
        }
        everyone = gather((mine, self._misplaced(plan)), self.group)
        for what in mine:
            values = [settings[what] for settings, _ in everyone]
            for rank, value in enumerate(values):
                if value != values[0]:
                    raise RankError(
                        f"the ranks differ in their {what}: rank 0 has {values[0]}, rank {rank} has"
                        f" {value}"
                    )
        for _, problem in everyone:
            if problem is not None:
                raise InvalidScheduleError(problem)

    def _misplaced(self, plan: Schedule) -> str | None:
        """How a plan's placement differs from this rank's stages."""
        here = sorted(s for s, rank in enumerate(plan.stage_ranks) if rank == self.rank)
        if here != sorted(self._stages) or plan.num_ranks != len(self._global_ranks):
            return (
                f"{plan.name} puts stages {here} on rank {self.rank} of {plan.num_ranks}, but it"
                f" holds stages {sorted(self._stages)} of {len(self._global_ranks)} ranks"
            )
        return None

    def _shapes_of(self, message: Arrival) -> Shapes:
        """What a message to this rank is like, as its stages were declared."""
        is_grad, stage, _ = message
        if not is_grad:
            return [shape[:2] for shape in torch_shim.input_shapes(self._stages[stage])]
        outputs = torch_shim.output_shapes(self._stages[stage])
        return [shape if shape[1].is_floating_point else None for shape in outputs]


def plan_hash(plan: Schedule) -> str:
    """A short name of an order on a placement: equal for equal plans, on every machine."""
    digest = hashlib.sha256(repr((plan.stage_ranks, plan.num_microbatches)).encode())
    for name in ("rank_offsets", "kinds", "stages", "microbatches", "splits"):
        digest.update(getattr(plan, name).tobytes())
    return digest.hexdigest()[:12]


def _check_stages(
    stages: Sequence[PipelineStage], replicas: dist.ProcessGroup | None, *, in_order: bool
) -> None:
    for stage in stages:
        if not torch_shim.has_static_shapes(stage):
            raise InvalidScheduleError(
                f"stage {stage.stage_index} needs input_args and output_args: use wrap_stage"
            )
        check_replicas(stage, replicas, in_order=in_order)
