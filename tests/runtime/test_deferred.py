"""Deferred weight gradients equal the native ones, bit for bit."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from conductor.runtime.deferred import WeightQueue, defer_weight_gradients


class Block(nn.Module):
    def __init__(self, checkpointed=False):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 48)
        self.down = nn.Linear(48, 16, bias=False)
        self.checkpointed = checkpointed
        self.forwards = 0

    def body(self, x):
        self.forwards += 1
        return x + self.down(torch.tanh(self.up(self.norm(x))))

    def forward(self, x):
        if self.checkpointed and torch.is_grad_enabled():
            return checkpoint(self.body, x, use_reentrant=False)
        return self.body(x)


def model(**kwargs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), Block(**kwargs), Block(**kwargs), nn.Linear(16, 5))


def batches(dtype=torch.float32, shape=(3, 7, 16)):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]


def native(net, inputs, autocast=False):
    grads = []
    for x in inputs:
        x = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = net(x)
        out.float().square().mean().backward()
        grads.append(x.grad)
    return grads


def deferred(net, inputs, autocast=False):
    """All I, then all W, both in micro-batch order."""
    queue = WeightQueue()
    assert defer_weight_gradients(net, queue) == 6
    grads, later = [], []
    for x in inputs:
        x = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = net(x)
        out.float().square().mean().backward()
        assert all(layer.weight.grad is None for layer in net if isinstance(layer, nn.Linear))
        grads.append(x.grad)
        later.append(queue.take())
    for run in later:
        run()
    return grads


def assert_same(left, right):
    for (name, a), (_, b) in zip(left.named_parameters(), right.named_parameters(), strict=True):
        assert torch.equal(a.grad, b.grad), name
        assert a.grad.dtype == b.grad.dtype
        assert b.grad.grad_fn is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(3, 7, 16), (9, 16)])
def test_gradients_equal_the_native_ones(dtype, shape):
    one = model().to(dtype)
    other = copy.deepcopy(one)
    inputs = batches(dtype, shape)
    expected, got = native(one, inputs), deferred(other, inputs)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert_same(one, other)


def test_gradients_equal_under_autocast():
    one, other = model(), model()
    expected, got = native(one, batches(), autocast=True), deferred(other, batches(), autocast=True)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert_same(one, other)


def test_checkpointing_runs_each_layer_forward_twice():
    one, other = model(checkpointed=True), model(checkpointed=True)
    native(one, batches())
    deferred(other, batches())
    assert_same(one, other)
    assert [other[1].forwards, other[2].forwards] == [2 * 3, 2 * 3]


def test_a_layer_used_twice_in_one_micro_batch():
    torch.manual_seed(0)
    layer = nn.Linear(16, 16)
    one = nn.Sequential(layer, nn.Tanh(), layer)
    other = copy.deepcopy(one)
    native(one, batches())
    queue = WeightQueue()
    defer_weight_gradients(other, queue)
    for x in batches():
        other(x).float().square().mean().backward()
        queue.take()()
    assert_same(one, other)


def test_frozen_layers_get_no_gradient():
    net = model()
    net[0].requires_grad_(False)
    queue = WeightQueue()
    defer_weight_gradients(net, queue)
    net(batches()[0]).sum().backward()
    queue.take()()
    assert net[0].weight.grad is None
    assert net[3].weight.grad is not None


def test_parameters_and_state_stay_as_they_are():
    net, same = model(), model()
    defer_weight_gradients(net, WeightQueue())
    assert list(net.state_dict()) == list(same.state_dict())
    x = batches()[0]
    assert torch.equal(net(x), same(x))
    copied = copy.deepcopy(net)
    assert torch.equal(copied(x), same(x))
