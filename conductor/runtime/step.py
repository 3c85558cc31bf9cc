"""One step on one rank: the loop that runs actions as their inputs arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.profiler import record_function

from conductor.ir.action import Action
from conductor.problem.kind import Kind
from conductor.runtime import torch_shim
from conductor.runtime.cuda_links import CudaWatch
from conductor.runtime.dispatch import Arrival, Dispatcher, RankPlan
from conductor.runtime.exchange.exchange import Exchange
from conductor.runtime.faults import LOOK_S, Alarm
from conductor.runtime.links import LinkFailure, Message
from conductor.runtime.order import Order
from conductor.runtime.transport import Links


@dataclass(slots=True, kw_only=True)
class StepTimes:
    """When each action of a rank ran in a step.

    Attributes:
        start_ns: by position in the rank's plan, on the machine's monotonic clock.
        end_ns: the same.
        transfers: of each message that came; see `clocks.Transfers`.
        num_ahead: actions that ran before their turn.
    """

    start_ns: list[int]
    end_ns: list[int]
    transfers: dict[tuple[bool, int], list[tuple[float, bool]]] = field(default_factory=dict)
    num_ahead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A step's data, by micro-batch.

    Attributes:
        args: positional arguments of the first stage.
        kwargs: keyword arguments of every stage.
        targets: for the loss; None where the rank has not the last stage or there is no loss.
    """

    args: Sequence[tuple[Any, ...]]
    kwargs: Sequence[dict[str, Any]]
    targets: Sequence[Any] | None


class Step:
    """Runs one step. Everything it takes belongs to the executor; it is made anew for each step."""

    def __init__(
        self,
        *,
        number: int,
        plan: RankPlan,
        stage_ranks: Sequence[int],
        stages: Mapping[int, PipelineStage],
        batch: Batch,
        loss_fn: Callable[..., Tensor] | None,
        links: Links,
        watch: CudaWatch | None,
        alarm: Alarm,
        targets_ns: Sequence[int] | None,
        order_of: Callable[[Dispatcher], Order],
        has_backward: bool,
        exchange: Exchange | None = None,
    ) -> None:
        """`targets_ns` stretches the actions; `order_of` makes what decides about them.

        With an `exchange` ranks do parts of each other's actions.
        """
        self._number, self._plan, self._stage_ranks = number, plan, stage_ranks
        self._stages, self._batch, self._loss_fn = stages, batch, loss_fn
        self._inbox, self._ordered, self._outgoing = links.inbox, links.ordered, links.outgoing
        self._watch, self._alarm = watch, alarm
        self._targets_ns = targets_ns
        self._has_backward, self._exchange = has_backward, exchange
        self._dispatcher = Dispatcher(plan)
        self._order = order_of(self._dispatcher)
        self._backwards = dict.fromkeys(stages, 0)
        self._graphs: dict[int, Tensor] = {}
        self._doing: Action | None = None
        self.losses: dict[int, Tensor] = {}
        self.outputs: dict[int, Any] = {}
        size = len(plan.actions)
        self.times = StepTimes(start_ns=[0] * size, end_ns=[0] * size)

    def run(self) -> None:
        """Runs the rank's actions to the last.

        Raises:
            RankError: this rank or another cannot go on.
        """
        dispatcher, order, clock = self._dispatcher, self._order, time.perf_counter_ns
        while dispatcher.num_left:
            while not self._inbox.empty():
                self._accept(self._inbox.get())
            if self._exchange is not None:
                self._exchange.serve()
            index = order.choose(clock())
            if index is None:
                if self._exchange is not None:
                    self._exchange.idle()
                if self._ordered:
                    self._accept(self._ordered[self._awaited()].take())
                else:
                    self._wait(order.until_ns)
                continue
            self.times.num_ahead += index != dispatcher.planned
            action = self._doing = self._plan.actions[index]
            dispatcher.start(index)
            with record_function(f"Conductor:{action}"):  # for torch's profiler
                start_ns = clock()
                if self._exchange is not None:
                    self._exchange.start(index, start_ns)
                if self._watch is not None:
                    self._watch.start()
                send = self._perform(action)
                if self._watch is not None:
                    took_ns = self._watch.finish()
                    start_ns = clock() - took_ns
                if self._exchange is not None:
                    self._exchange.finish(stretch=self._targets_ns is not None)
                elif self._targets_ns is not None:
                    left_s = (start_ns + self._targets_ns[index] - clock()) / 1e9
                    if left_s > 0.0:
                        time.sleep(left_s)
                self.times.start_ns[index], self.times.end_ns[index] = start_ns, clock()
            if send is not None:
                self._hand_on(*send, self.times.end_ns[index] - start_ns)
            dispatcher.finish(index)
            order.ended(self.times.end_ns[index] - start_ns)
            self._doing = None
        for link in self._outgoing.values():
            link.flush()
        if self._exchange is not None:
            self._exchange.end_step(self.describe)

    def describe(self) -> str:
        """What the rank does now, for a report."""
        if self._doing is not None:
            return f"runs {self._doing} in step {self._number}"
        if not self._dispatcher.num_left:
            return f"sends its last messages in step {self._number}"
        action = self._plan.actions[self._dispatcher.planned]
        what = "activation" if action.kind is Kind.F else "gradient"
        return (
            f"waits in step {self._number} before {action} for the {what} of stage"
            f" {self._source(action)} from rank {self._awaited()}"
        )

    def _awaited(self) -> int:
        """The rank from which the input of the planned action comes."""
        return self._stage_ranks[self._source(self._plan.actions[self._dispatcher.planned])]

    def _source(self, action: Action) -> int:
        """The neighbour stage that an action waits for; its own where it has none."""
        source = action.stage + (-1 if action.kind is Kind.F else 1)
        return source if 0 <= source < len(self._stage_ranks) else action.stage

    def _wait(self, until_ns: int | None) -> None:
        """Waits for a message, or until then on the clock of `time.perf_counter_ns`."""
        deadline = time.monotonic() + self._alarm.timeout_s
        while True:
            wait_s = LOOK_S
            if until_ns is not None:
                left_s = (until_ns - time.perf_counter_ns()) / 1e9
                if left_s <= 0.0:
                    return
                wait_s = min(wait_s, left_s)
            try:
                self._accept(self._inbox.get(timeout=wait_s))
                return
            except Empty:
                if wait_s < LOOK_S:
                    return
            self._alarm.check(self.describe)
            if time.monotonic() > deadline:
                raise TimeoutError(f"no message for {self._alarm.timeout_s:g} s")

    def _accept(self, message: Message | LinkFailure | None) -> None:
        """Gives an arrived input to its stage."""
        if message is None:
            return
        if isinstance(message, LinkFailure):
            # The cause is often told a moment later, by the rank that failed first.
            time.sleep(LOOK_S)
            self._alarm.check(self.describe)
            raise ConnectionError(
                f"the link from rank {message.sender} broke: {message.error.strip().splitlines()[0]}"
            )
        is_grad, stage_index, microbatch = message.key
        if message.step != self._number or message.key not in self._plan.arrivals:
            raise RuntimeError(
                f"rank {message.sender} sent something for stage {stage_index}, micro-batch"
                f" {microbatch} of step {message.step}, which this rank's plan has not"
            )
        stage = self._stages[stage_index]
        if is_grad:
            stage.set_local_bwd_input(message.tensors, microbatch)
        else:
            self._check_input(stage, message)
            stage.set_local_fwd_input(message.tensors, microbatch)
        self._dispatcher.arrive(message.key)
        self._order.arrived(message.key, message.arrived_ns, message.work_ms)
        self.times.transfers.setdefault((is_grad, stage_index), []).append(
            (message.transfer_ms, message.arrived_before)
        )

    def _check_input(self, stage: PipelineStage, message: Message) -> None:
        expected = [shape[:2] for shape in torch_shim.input_shapes(stage)]
        got = [(tuple(t.shape), t.dtype) for t in message.tensors if t is not None]
        if got != expected:
            raise ValueError(
                f"stage {stage.stage_index} takes {_shapes(expected)}, but rank {message.sender}"
                f" sent {_shapes(got)} for micro-batch {message.key[2]}"
            )

    def _perform(self, action: Action) -> tuple[Arrival, Sequence[Tensor | None]] | None:
        """Runs one action; returns what the neighbour stage gets."""
        stage, microbatch = self._stages[action.stage], action.microbatch
        if action.kind is Kind.F:
            return self._forward(stage, microbatch)
        self._backwards[action.stage] += action.kind is not Kind.I
        last = self._backwards[action.stage] == len(self._batch.args)
        if action.kind is Kind.W:
            stage.backward_weight_one_chunk(microbatch, last_backward=last)
            return None
        stage.backward_one_chunk(
            microbatch,
            loss=self._graphs.pop(microbatch, None) if stage.is_last else None,
            full_backward=action.kind is Kind.B,
            last_backward=last,
        )
        torch_shim.drop_output_grad(stage, microbatch)
        if stage.is_first:
            return None
        return (True, action.stage - 1, microbatch), torch_shim.input_grads(stage, microbatch)

    def _forward(
        self, stage: PipelineStage, microbatch: int
    ) -> tuple[Arrival, Sequence[Tensor | None]] | None:
        batch = self._batch
        output = stage.forward_one_chunk(
            microbatch, batch.args[microbatch], batch.kwargs[microbatch]
        )
        torch_shim.drop_input(stage, microbatch)
        if not self._has_backward:
            torch_shim.forget_forward(stage, microbatch)
        outputs = output if isinstance(output, tuple | list) else (output,)
        got = [(tuple(t.shape), t.dtype) for t in outputs]
        expected = torch_shim.output_shapes(stage)
        if got != expected:
            raise ValueError(
                f"stage {stage.stage_index} was declared to give {_shapes(expected)}, but gave"
                f" {_shapes(got)} for micro-batch {microbatch}"
            )
        if not stage.is_last:
            return (False, stage.stage_index + 1, microbatch), outputs
        if self._loss_fn is not None and batch.targets is not None:
            loss = self._loss_fn(output, batch.targets[microbatch])
            self.losses[microbatch] = loss.detach()
            if self._has_backward:
                self._graphs[microbatch] = loss
        self.outputs[microbatch] = output.detach() if isinstance(output, Tensor) else output
        return None

    def _hand_on(self, key: Arrival, tensors: Sequence[Tensor | None], work_ns: int) -> None:
        """Gives a result to the neighbour stage, here or on another rank."""
        is_grad, stage_index, microbatch = key
        rank = self._stage_ranks[stage_index]
        if rank != self._plan.rank:
            self._outgoing[rank].send(key, self._number, tensors, work_ns)
        elif is_grad:
            self._stages[stage_index].set_local_bwd_input(tuple(tensors), microbatch)
        else:
            self._stages[stage_index].set_local_fwd_input(tuple(tensors), microbatch)


def _shapes(shapes: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> str:
    return " and ".join(f"{list(shape)} {str(dtype)[6:]}" for shape, dtype in shapes)
