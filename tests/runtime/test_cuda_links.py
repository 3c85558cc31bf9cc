"""The links between GPUs, as far as that goes without one: gloo and a clock stand in for NCCL and events."""

import threading
import time
from functools import partial
from queue import Empty

import pytest
import torch

from conductor.errors import ConductorError, RankError
from conductor.runtime import executor, torch_shim
from conductor.runtime.cuda_links import CudaLink, CudaOutgoing, CudaWatch, PolledInbox, Posted
from conductor.runtime.executor import ConductorSchedule
from conductor.runtime.transport import open_links
from conductor.schedules.registry import build
from tests.runtime.networks import batch, loss_of, network, stages_of
from tests.runtime.ranks import run_ranks
from tests.runtime.test_executor import Jitter, check_step, spec_of


class Work:
    """Of NCCL: can be asked whether it is over. The calls are counted: none may wait before that."""

    def __init__(self, work):
        self.over = threading.Event()
        threading.Thread(target=lambda: (work.wait(), self.over.set()), daemon=True).start()

    def is_completed(self):
        return self.over.is_set()

    def wait(self):
        assert self.over.wait(10.0)


class Payload:
    """Of NCCL: no headers, matched by issue order."""

    def __init__(self, name, end, timeout_s, device):
        self.group = torch_shim.pair_group(name, end, timeout_s)

    def send(self, tensors, target, tag):
        return Work(self.group.send(tensors, target, tag))

    def recv(self, tensors, source, tag):
        return Work(self.group.recv(tensors, source, tag))


class Event:
    """Over 2 ms after it was recorded."""

    def record(self):
        self.at = time.monotonic() + 0.002

    def query(self):
        return time.monotonic() >= self.at

    def elapsed_time(self, later):
        return 1000.0 * (later.at - self.at)


def train(rank, cases):
    """What differs from the reference in each case; in the last, rank 1 fails."""
    executor.open_links = partial(open_links, payload_group=Payload)
    wrong = []
    for plan, mode in cases:
        net = network(plan.num_stages)
        stages = stages_of(net, plan, rank)
        schedule = ConductorSchedule(
            stages, plan.num_microbatches, loss_of, plan=plan, mode=mode, timeout_s=60,
            pace=Jitter() if mode == "ready-first" else None,
        )  # fmt: skip
        schedule._watch = CudaWatch(Event)
        kinds = {type(link) for link in schedule._links.announced.values()}
        kinds |= {type(link) for link in schedule._links.outgoing.values()}
        assert kinds == {CudaLink, CudaOutgoing}
        assert not schedule._links.ordered
        for seed in range(2):
            x, target = batch(plan.num_microbatches, seed)
            wrong += check_step(schedule, stages, net, x, target, rank)
        took = [
            end - start
            for start, end in zip(schedule.times.start_ns, schedule.times.end_ns, strict=True)
        ]
        assert min(took) > 0
    if rank == 1:
        stages[0].submod.register_forward_hook(lambda *_: 1 / 0)
    try:
        check_step(schedule, stages, net, x, target, rank)
    except RankError as error:
        wrong.append("division by zero" in str(error))
    return wrong


def test_steps_over_announced_receives_are_exact_and_end_when_a_rank_fails():
    cases = [(build(name, spec_of(2, 6)), mode) for name, mode in
             (("1f1b", "static"), ("zb-1p", "ready-first"), ("zb-v", "ready-first"))]  # fmt: skip
    assert run_ranks(train, 2, cases) == [[True], [True]]


class Gate:
    """A receive that ends when it is told to."""

    def __init__(self):
        self.open, self.waited = False, False

    def is_completed(self):
        return self.open

    def wait(self):
        assert self.open
        self.waited = True


def posted(microbatch, gate):
    numbers = [0, 0, 1, microbatch, time.perf_counter_ns(), 7_000_000, 1]
    return Posted(numbers=numbers, tensors=[torch.ones(1)], works=[gate], sender=0, lag_ms={})


def test_the_inbox_gives_what_has_arrived_and_waits_for_nothing_else():
    inbox, gates = PolledInbox(), [Gate(), Gate()]
    for microbatch, gate in enumerate(gates):
        inbox.put(posted(microbatch, gate))
    assert inbox.empty()
    with pytest.raises(Empty):
        inbox.get(timeout=0.01)
    gates[1].open = True
    message = inbox.get(timeout=1.0)
    assert message.key == (False, 1, 1)
    assert message.work_ms == 7.0
    assert [gate.waited for gate in gates] == [False, True]
    inbox.put(None)
    assert inbox.get() is None
    gates[0].open = True
    assert inbox.get().key == (False, 1, 0)
    assert inbox.empty()


def test_an_action_is_over_when_its_last_event_is():
    watch = CudaWatch(Event)
    watch.start()
    time.sleep(0.003)
    began = time.monotonic()
    assert watch.finish() >= 3e6
    assert time.monotonic() - began >= 0.002


@pytest.mark.skipif(hasattr(torch.distributed, "ProcessGroupNCCL"), reason="this torch has NCCL")
def test_stages_on_gpus_need_nccl():
    with pytest.raises(ConductorError, match="has no NCCL: stages on cuda:0 need it"):
        torch_shim.nccl_pair("name", 0, 1.0, torch.device("cuda:0"))
