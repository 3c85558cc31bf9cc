"""Random cases of moved work against the plain PyTorch code."""

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from conductor.migration.modules.activation import ACTIVATIONS, hidden_of
from conductor.migration.modules.attention import MigratableAttention
from conductor.migration.modules.convert import migratable
from conductor.migration.modules.lending import Part
from conductor.migration.modules.loopback import LoopbackHelper
from conductor.migration.modules.mlp import MigratableMLP
from conductor.migration.modules.request import Request, reply_shapes
from conductor.problem.kind import Kind
from conductor.runtime.deferred import WeightQueue, defer_weight_gradients

FATES = ("served", "refused", "late", "lost", "behind lost")
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 3e-2}


class CheckedHelper(LoopbackHelper):
    """Sends requests as numbers and tensors, and holds replies to what was announced."""

    def post(self, request):
        told = Request.from_numbers(request.numbers(), request.tensors)
        assert all(
            getattr(told, name) == getattr(request, name)
            for name in Request.__slots__
            if name != "tensors"
        )
        assert all(t.is_contiguous() and not t.requires_grad for t in request.tensors)
        super().post(told)
        _, reply = self._replies[request.serial]
        if reply is not None:
            got = tuple(
                tuple((tuple(t.shape), t.dtype) for t in tensors)
                for tensors in (reply.tensors, reply.behind)
            )
            assert got == reply_shapes(request)


def random_fates(rng):
    """Most requests are served."""
    return lambda request: str(rng.choice(FATES, p=(0.6, 0.1, 0.1, 0.1, 0.1)))


def random_parts(rng, units):
    """Up to three parts, in order, with and without gaps between them."""
    ends = sorted(rng.choice(units + 1, size=min(2 * int(rng.integers(0, 4)), units + 1) // 2 * 2,
                             replace=False).tolist())  # fmt: skip
    return [
        Part(lender=int(rng.integers(1, 4)), first=first, stop=stop)
        for first, stop in zip(ends[::2], ends[1::2], strict=True)
    ]


@dataclass
class Result:
    """Tensors by name, in the same order for all runs of a case."""

    tensors: dict
    num_requests: int


def attention_case(rng, whole_lines=False):
    """Inputs, keyword arguments and the gradient of the output.

    `whole_lines` makes every head begin at a cache line, wherever it lies.
    """
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    dtype = [torch.float32, torch.bfloat16, torch.float64, torch.float16][rng.integers(4)]
    batch, groups, ratio = (int(n) for n in rng.integers(1, (4, 7, 5)))
    length, width = int(rng.integers(1, 40)), int(rng.choice([4, 8, 12, 16, 32]))
    if whole_lines:
        length, width = 8 * (1 + length // 5), int(rng.choice([16, 32, 48]))
    mask_kind = rng.choice(["none", "causal", "bool", "added", "by head"])
    keys = length if mask_kind == "causal" else 8 * int(rng.integers(1, 9))
    keys = keys if whole_lines or mask_kind == "causal" else int(rng.integers(1, 40))
    heads = groups * ratio

    def make(count, tokens):
        if rng.random() < 0.5:
            return torch.randn(batch, count, tokens, width, generator=generator).to(dtype)
        return (
            torch.randn(batch, tokens, count, width, generator=generator).to(dtype).transpose(1, 2)
        )

    mask = {
        "bool": lambda: torch.rand(length, keys, generator=generator) < 0.7,
        "added": lambda: torch.randn(batch, 1, length, keys, generator=generator).to(dtype),
        "by head": lambda: torch.rand(batch, heads, length, keys, generator=generator) < 0.7,
    }.get(str(mask_kind), lambda: None)()
    if mask is not None and mask.dtype == torch.bool:
        mask[..., 0] = True  # a row without keys is not a number
    options = {
        "attn_mask": mask,
        "is_causal": mask_kind == "causal",
        "scale": None if rng.random() < 0.5 else float(rng.uniform(0.05, 0.5)),
        "enable_gqa": ratio > 1,
    }
    inputs = [make(heads, length), make(groups, keys), make(groups, keys)]
    return inputs, options, make(heads, length), groups


def check_attention(rng, whole_lines=False):
    """Bitwise equal whatever moves and whatever becomes of it."""
    inputs, options, grad, groups = attention_case(rng, whole_lines)
    module = MigratableAttention()
    lending = migratable(module)
    helper = lending.helper = CheckedHelper(random_fates(rng))
    lending.begin({(0, kind): random_parts(rng, groups) for kind in (Kind.F, Kind.I)}, 0)
    checkpointed = rng.random() < 0.3

    def run(attend):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        if checkpointed:
            output = checkpoint(attend, *leaves, use_reentrant=False, **options)
        else:
            output = attend(*leaves, **options)
        output.backward(grad)
        return [output.detach(), *(leaf.grad for leaf in leaves)]

    expected, got = run(functional.scaled_dot_product_attention), run(module)
    assert all(torch.equal(one, other) for one, other in zip(expected, got, strict=True))
    return len(helper.requests)


class PlainMLP(nn.Module):
    """What a `MigratableMLP` is, in plain PyTorch."""

    def __init__(self, width, inner, gated, bias, activation):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner, bias=bias), nn.Linear(inner, width, bias=bias)
        self.gate = nn.Linear(width, inner, bias=bias) if gated else None
        self.activation = activation

    def forward(self, x):
        inner = [self.up(x)] if self.gate is None else [self.gate(x), self.up(x)]
        return self.down(hidden_of(inner, self.activation))


def check_mlp(rng):
    """Equal to the last bit where nothing moves, close where it does, and the same every time."""
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    dtype = [torch.float32, torch.float32, torch.float64, torch.bfloat16][rng.integers(4)]
    width, inner = int(rng.integers(2, 20)), int(rng.integers(4, 50))
    gated, bias, deferred, checkpointed = (rng.random(4) < (0.5, 0.5, 0.6, 0.4)).tolist()
    activation, frozen = int(rng.integers(len(ACTIVATIONS))), rng.random() < 0.1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        plain = PlainMLP(width, inner, gated, bias, activation).to(dtype)
    plain.up.requires_grad_(not frozen)
    shape = (*rng.integers(1, 6, size=int(rng.integers(1, 3))).tolist(), width)
    batches = [
        [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]
        for _ in range(int(rng.integers(1, 4)))
    ]
    decisions = [{(0, kind): random_parts(rng, inner) for kind in Kind} for _ in batches]
    seed = int(rng.integers(2**31))

    def run(mlp, lending, queue):
        result = {}
        for index, (x, grad) in enumerate(batches):
            x = x.clone().requires_grad_()
            if lending is not None:
                lending.begin(decisions[index], index)
            output = checkpoint(mlp, x, use_reentrant=False) if checkpointed else mlp(x)
            output.backward(grad)
            queue.take()()
            result |= {f"output {index}": output.detach(), f"x {index}": x.grad}
        return result

    def moved():
        own = copy.deepcopy(plain)
        mlp = MigratableMLP(own.up, own.down, own.gate, activation=ACTIVATIONS[activation])
        queue = WeightQueue()
        lending = migratable(mlp)
        if deferred:
            defer_weight_gradients(mlp, queue)
        # Fates by the seed alone: serials differ between runs.
        helper = lending.helper = CheckedHelper(
            random_fates(type(rng)(type(rng.bit_generator)(seed)))
        )
        for lender, version in ((1, 0), (2, 0), (3, 1)):  # the third is behind: it refuses
            first, stop = (0, inner) if lender != 2 else (inner // 3, inner)
            weights = lending.slice_weights(0, first, stop)
            helper.store(lender).put((0, 0, first, stop), version, weights)
        result = run(mlp, lending, queue)
        lending.settle(helper.give_back())
        assert not lending.unsettled
        result |= {name: parameter.grad for name, parameter in own.named_parameters()}
        return result, len(helper.requests)

    expected = run(plain, None, WeightQueue())
    expected |= {name: parameter.grad for name, parameter in plain.named_parameters()}
    got, num_requests = moved()
    again, _ = moved()
    for name, value in expected.items():
        if value is None:
            assert got[name] is None
            continue
        assert torch.equal(got[name], again[name]), name
        if num_requests == 0:
            assert torch.equal(got[name], value), name
        error = (got[name] - value).abs().max() / value.abs().max().clamp_min(1e-3)
        assert error <= TOLERANCE[dtype], (name, float(error))
    return num_requests
