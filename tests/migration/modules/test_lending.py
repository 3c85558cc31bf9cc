"""Who does which part, what a lender holds, and that every weight gradient counts once."""

import pytest
import torch
from torch import nn

from conductor.errors import CannotMoveError
from conductor.migration.modules.attention import MigratableAttention
from conductor.migration.modules.convert import migratable
from conductor.migration.modules.lending import Part
from conductor.migration.modules.loopback import LoopbackHelper
from conductor.migration.modules.mlp import MigratableMLP
from conductor.migration.modules.request import Piece
from conductor.migration.modules.serve import serve
from conductor.problem.kind import Kind

WIDTH, INNER = 6, 10


def part(first, stop, lender=1):
    return Part(lender=lender, first=first, stop=stop)


def mlp_with(fate=None, held=(0, INNER)):
    """An MLP in float64, its lending, its helper, and rank 1 with columns of it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mlp = MigratableMLP(nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)).double()
    lending = migratable(mlp)
    lending.helper = helper = LoopbackHelper(fate)
    helper.store(1).put((0, 0, *held), 0, lending.slice_weights(0, *held))
    return mlp, lending, helper


def backward(mlp, seed=1):
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mlp(x).square().sum().backward()


def plain_gradients(num_microbatches):
    mlp, lending, _ = mlp_with()
    lending.helper = None
    for microbatch in range(num_microbatches):
        backward(mlp, microbatch)
    return [parameter.grad for parameter in mlp.parameters()]


def assert_gradients_are(mlp, expected):
    for parameter, grad in zip(mlp.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("fate", ["served", "refused", "late", "lost"])
def test_every_weight_gradient_counts_once(fate):
    mlp, lending, helper = mlp_with(lambda request: fate if request.kind is Kind.W else "served")
    for microbatch in range(3):
        lending.begin({(0, Kind.W): [part(2, 5), part(7, 9)]}, microbatch)
        backward(mlp, microbatch)
    in_doubt = len(lending.unsettled)
    assert in_doubt == (6 if fate in ("late", "lost") else 0)
    returned = helper.give_back()
    assert [len(back.serials) for back in returned] == ([6] if fate in ("served", "late") else [])
    lending.settle(returned)
    assert_gradients_are(mlp, plain_gradients(3))
    lending.settle(helper.give_back())
    assert_gradients_are(mlp, plain_gradients(3))


def test_a_lender_that_served_then_fell_silent_still_counts_once():
    fates = iter(["served", "late", "lost", "refused"])
    mlp, lending, helper = mlp_with(lambda request: next(fates))
    for microbatch in range(4):
        lending.begin({(0, Kind.W): [part(0, INNER)]}, microbatch)
        backward(mlp, microbatch)
    lending.settle(helper.give_back())
    assert_gradients_are(mlp, plain_gradients(4))


def test_gradients_returned_twice_are_refused():
    mlp, lending, helper = mlp_with()
    lending.begin({(0, Kind.W): [part(2, 5)]}, 0)
    backward(mlp)
    returned = helper.give_back()
    lending.settle(returned)
    with pytest.raises(RuntimeError, match="were counted already"):
        lending.settle(returned)


def test_gradients_that_a_lender_has_lost_are_missed():
    mlp, lending, helper = mlp_with()
    lending.begin({(0, Kind.W): [part(2, 5)]}, 0)
    backward(mlp)
    helper.store(1).drop()
    with pytest.raises(RuntimeError, match="were not given back"):
        lending.settle(helper.give_back())


def test_weights_of_another_version_are_not_used():
    mlp, lending, helper = mlp_with()
    decision = {(0, kind): [part(2, 5)] for kind in (Kind.F, Kind.I, Kind.W)}
    lending.version = 1
    lending.begin(decision, 0)
    backward(mlp)
    assert [serve(request, helper.store(1)) for request in helper.requests] == [None] * 3
    assert helper.give_back() == []
    assert_gradients_are(mlp, plain_gradients_of_seed_one())


def plain_gradients_of_seed_one():
    mlp, lending, _ = mlp_with()
    lending.helper = None
    backward(mlp)
    return [parameter.grad for parameter in mlp.parameters()]


def test_new_weights_wait_for_the_old_gradients():
    mlp, lending, helper = mlp_with()
    lending.begin({(0, Kind.W): [part(2, 5)]}, 0)
    backward(mlp)
    weights = lending.slice_weights(0, 0, INNER)
    with pytest.raises(CannotMoveError, match="have not been given back"):
        helper.store(1).put((0, 0, 0, INNER), 1, weights)
    lending.settle(helper.give_back())
    helper.store(1).put((0, 0, 0, INNER), 1, weights)


def test_weights_cannot_change_before_their_gradients_are_settled():
    mlp, lending, helper = mlp_with()
    lending.begin({(0, Kind.W): [part(2, 5)]}, 0)
    backward(mlp)
    with pytest.raises(RuntimeError, match="still with lenders"):
        lending.version = 1
    lending.settle(helper.give_back())
    lending.version = 1


def test_what_a_full_backward_moves_counts_for_its_i():
    mlp, lending, helper = mlp_with()
    lending.begin({(0, Kind.B): [part(2, 5)]}, 0)
    backward(mlp)
    assert [request.kind for request in helper.requests] == [Kind.I]


def test_only_columns_that_are_held_are_served():
    mlp, lending, helper = mlp_with(held=(2, 6))
    for columns in ((2, 6), (3, 5), (1, 4), (5, 8)):
        lending.begin({(0, Kind.F): [part(*columns)]}, 0)
        backward(mlp)
    served = [serve(request, helper.store(1)) is not None for request in helper.requests]
    assert served == [True, True, False, False]


def test_held_bytes_are_those_of_weights_and_gradients():
    mlp, lending, helper = mlp_with(held=(2, 6))
    weights = 8 * (4 * WIDTH + WIDTH * 4 + 4)
    assert helper.store(1).held_bytes == weights
    lending.begin({(0, Kind.W): [part(3, 5)]}, 0)
    backward(mlp)
    assert helper.store(1).held_bytes == 2 * weights
    lending.settle(helper.give_back())
    assert helper.store(1).held_bytes == weights


def test_a_lender_gets_copies_of_weights():
    mlp, lending, _ = mlp_with()
    before = lending.slice_weights(0, 1, 3)
    expected = [weight.clone() for weight in before]
    with torch.no_grad():
        for parameter in mlp.parameters():
            parameter += 1.0
    assert all(torch.equal(a, b) for a, b in zip(before, expected, strict=True))


@pytest.mark.parametrize(
    "parts",
    [[part(0, INNER + 1)], [part(-1, 2)], [part(3, 3)], [part(4, 2)], [part(0, 4), part(3, 6)],
     [part(5, 6), part(0, 1)]],
)  # fmt: skip
def test_columns_that_are_not_there_are_refused(parts):
    mlp, lending, _ = mlp_with()
    lending.begin({(0, Kind.F): parts}, 0)
    with pytest.raises(CannotMoveError, match="which has 10 KV groups or columns"):
        backward(mlp)


def test_more_heads_than_there_are_are_refused():
    attention = MigratableAttention("decoder.attention")
    lending = migratable(attention)
    lending.helper = LoopbackHelper()
    lending.begin({(0, Kind.F): [part(1, 3)]}, 0)
    query, key = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    with pytest.raises(CannotMoveError, match="2 KV groups or columns, 1 to 3 cannot move"):
        attention(query, key, key, enable_gqa=True)


@pytest.mark.parametrize(
    ("options", "why"),
    [({"dropout_p": 0.1}, "drops out"),
     ({"attn_mask": torch.zeros(3, 3, requires_grad=True)}, "mask needs a gradient")],
)  # fmt: skip
def test_attention_that_cannot_split_says_why_if_asked_and_runs_if_not(options, why):
    attention = MigratableAttention()
    lending = migratable(attention)
    lending.helper = LoopbackHelper()
    query = torch.randn(1, 4, 3, 8)
    assert attention(query, query, query, **options).shape == query.shape
    lending.begin({(0, Kind.F): [part(1, 3)]}, 0)
    with pytest.raises(CannotMoveError, match=why):
        attention(query, query, query, **options)


def test_an_mlp_that_does_not_fit_is_refused():
    up, down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
    with pytest.raises(CannotMoveError, match="back to the same width"):
        MigratableMLP(up, nn.Linear(INNER, WIDTH + 1))
    with pytest.raises(CannotMoveError, match="'tanh', not silu"):
        MigratableMLP(up, down, activation="tanh")
    with pytest.raises(CannotMoveError, match="a bias in one of gate and up"):
        MigratableMLP(up, down, nn.Linear(WIDTH, INNER, bias=False))


def test_what_a_lender_knows_is_enough():
    """A request and the store: nothing of the borrower's modules."""
    mlp, lending, helper = mlp_with()
    lending.begin({(0, kind): [part(2, 5)] for kind in (Kind.F, Kind.I)}, 7)
    backward(mlp)
    forward, back = helper.requests
    assert (forward.piece, forward.kind, forward.microbatch) == (Piece.SLICE, Kind.F, 7)
    weights = helper.store(1)
    mlp.up.weight.data.zero_()
    assert serve(forward, weights).tensors[0].abs().sum() > 0
    assert [t.shape for t in serve(back, weights).tensors] == [(3, WIDTH)]
