"""Messages on links: what their headers tell, and whether they were there before anybody looked."""

import time

import pytest
import torch

from conductor.runtime.links import LinkFailure, OrderedLink, Outgoing

SHAPES = [((2, 3), torch.float32), None, ((1,), torch.int64)]


class Work:
    def __init__(self, late_s):
        self.late_s = late_s

    def wait(self, timeout=None):
        time.sleep(self.late_s)


class Wire:
    """Both ends of a link; what was sent comes so many seconds after somebody waits for it."""

    def __init__(self, late_s=0.0):
        self.sent, self.late_s = [], late_s

    def send(self, tensors, target, tag):
        self.sent += [tensor.clone() for tensor in tensors]
        return Work(0.0)

    def recv(self, tensors, source, tag):
        tensors[0].copy_(self.sent.pop(0))
        return Work(self.late_s)


def sent(wire, work_ns=5_000_000):
    tensors = [torch.ones(2, 3), None, torch.tensor([7])]
    Outgoing(wire, 1.0).send((True, 3, 4), 9, tensors, work_ns)
    return tensors


def test_a_message_arrives_as_it_was_sent_with_what_its_action_took():
    wire = Wire()
    tensors = sent(wire)
    link = OrderedLink(wire, 2, lambda key: SHAPES)
    link.expect([(True, 3, 4)], {})
    message = link.take()
    assert (message.key, message.step, message.sender, message.work_ms) == ((True, 3, 4), 9, 2, 5.0)
    assert torch.equal(message.tensors[0], tensors[0])
    assert message.tensors[1] is None
    assert message.tensors[2].item() == 7
    assert message.arrived_ns <= time.perf_counter_ns()


@pytest.mark.parametrize(("late_s", "before"), [(0.0, True), (0.005, False)])
def test_only_who_waits_knows_when_a_message_came(late_s, before):
    wire = Wire(late_s)
    sent(wire)
    link = OrderedLink(wire, 0, lambda key: SHAPES)
    link.expect([(True, 3, 4)], {})
    message = link.take()
    if not before:
        assert not message.arrived_before
        assert message.transfer_ms >= 5.0
    else:
        # A machine that is busy may take its time over what is there.
        assert message.arrived_before or message.transfer_ms > 0.05


def test_a_lag_holds_a_message_back():
    wire = Wire()
    sent(wire)
    link = OrderedLink(wire, 0, lambda key: SHAPES)
    link.expect([(True, 3, 4)], {3: 20.0})
    assert link.take().transfer_ms >= 20.0


def test_a_sender_that_has_failed_is_a_failure_of_the_link():
    wire = Wire()
    Outgoing(wire, 1.0).abort()
    wire.sent += [torch.zeros(2, 3), torch.zeros(1)]
    link = OrderedLink(wire, 4, lambda key: SHAPES)
    link.expect([(True, 3, 4)], {})
    assert link.take() == LinkFailure(sender=4, error="it has failed")
