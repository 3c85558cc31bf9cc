"""Standard blocks made migratable: the same parameters and results, and clear refusals."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from conductor.errors import CannotMoveError
from conductor.migration.modules.convert import migratable
from conductor.migration.modules.lending import Part
from conductor.migration.modules.loopback import LoopbackHelper
from conductor.migration.modules.request import Piece
from conductor.problem.kind import Kind
from conductor.runtime.deferred import WeightQueue, defer_weight_gradients
from conductor.runtime.gpt import GPTConfig, GPTStage, next_token_loss
from conductor.runtime.llama import LlamaConfig, LlamaStage, rotary_angles

WIDTH, LENGTH = 32, 11


class Rotated(nn.Module):
    """A decoder layer as in other code bases: half-turned rotation, repeated KV heads, other names."""

    def __init__(self):
        super().__init__()
        self.head_dim, self.num_key_value_heads = 8, 2
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.self_attn, self.mlp = nn.Module(), Gated()
        self.self_attn = Grouped()

    def forward(self, x):
        x = x + self.self_attn(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Grouped(nn.Module):
    head_dim = 8

    def __init__(self):
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k_proj, self.v_proj = nn.Linear(WIDTH, 16), nn.Linear(WIDTH, 16)
        self.attention_dropout = 0.0

    def forward(self, x):
        q, k, v = (
            f(x).view(*x.shape[:2], -1, 8).transpose(1, 2)
            for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        angles = rotary_angles(x.shape[1], 8).repeat(1, 2)
        q, k = (
            t * angles.cos() + torch.cat((-t[..., 4:], t[..., :4]), -1) * angles.sin()
            for t in (q, k)
        )
        k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.0)
        return self.o_proj(out.transpose(1, 2).reshape(x.shape))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, 48), nn.Linear(WIDTH, 48)
        self.down_proj, self.act_fn = nn.Linear(48, WIDTH), nn.GELU(approximate="tanh")

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Stack(nn.Module):
    """Layers in turn, each computed again in the backward if asked for."""

    def __init__(self, layers, checkpointed, **options):
        super().__init__()
        self.layers, self.checkpointed, self.options = nn.ModuleList(layers), checkpointed, options

    def forward(self, x):
        for layer in self.layers:
            if self.checkpointed:
                x = checkpoint(layer, x, use_reentrant=False, **self.options)
            else:
                x = layer(x, **self.options)
        return x


def encoder(checkpointed, *, norm_first, activation="relu", **options):
    return Stack(
        [
            nn.TransformerEncoderLayer(
                WIDTH, 4, 48, dropout=0.0, batch_first=True, norm_first=norm_first,
                activation=activation,
            )
            for _ in range(2)
        ],
        checkpointed, **options,
    )  # fmt: skip


def gpt(checkpointed):
    config = GPTConfig(num_layers=2, d_model=WIDTH, checkpointing=checkpointed)
    return GPTStage(config, 2, is_first=False, is_last=False)


def llama(checkpointed):
    config = LlamaConfig(d_model=WIDTH, num_heads=4, num_kv_heads=2, mlp_width=48,
                         checkpointing=checkpointed)  # fmt: skip
    return LlamaStage(config, 2, is_first=False, is_last=False)


CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH)
PADDED = torch.zeros(3, LENGTH, dtype=torch.bool)
PADDED[0, -2:] = True
MODELS = {
    "encoder": lambda c: encoder(c, norm_first=False),
    "encoder, norm first": lambda c: encoder(c, norm_first=True, activation="gelu"),
    "encoder, causal": lambda c: encoder(c, norm_first=True, src_mask=CAUSAL, is_causal=True),
    "encoder, padded": lambda c: encoder(c, norm_first=True, src_key_padding_mask=PADDED),
    "llama": llama,
    "llama of other names": lambda c: Stack([Rotated(), Rotated()], c),
    "gpt": gpt,
}


def made(name, checkpointed=False):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return MODELS[name](checkpointed)


def train(model, lending, decision, queue):
    """Outputs and gradients of inputs of two micro-batches."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for microbatch in range(2):
        x = torch.randn(3, LENGTH, WIDTH, generator=generator).requires_grad_()
        if lending is not None:
            lending.begin(decision, microbatch)
        output = model(x)
        (output * torch.linspace(-1, 1, WIDTH)).sum().backward()
        queue.take()()
        found += [output.detach(), x.grad]
    return found


@pytest.mark.parametrize("moving", ["no helper", "nothing", "heads", "everything"])
@pytest.mark.parametrize(
    ("deferred", "checkpointed"),
    [("no", False), ("before", False), ("after", False), ("after", True)],
)
@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_gives_the_same(name, deferred, checkpointed, moving):
    plain, model = made(name, checkpointed), made(name, checkpointed)
    queue = WeightQueue()
    if deferred == "before":
        defer_weight_gradients(model, queue)
    lending = migratable(model, stage=4)
    if deferred == "after":
        defer_weight_gradients(model, queue)
    assert list(model.state_dict()) == list(plain.state_dict())
    helper = LoopbackHelper()
    decision = {}
    if moving != "no helper":
        lending.helper = helper
    for index, block in enumerate(lending.blocks):
        if block.piece is Piece.HEADS and moving in ("heads", "everything"):
            decision[index, Kind.F] = [Part(lender=1, first=1, stop=block.units)]
            decision[index, Kind.I] = [Part(lender=2, first=0, stop=1)]
        if block.piece is Piece.SLICE and moving == "everything":
            helper.store(1).put((4, index, 20, 48), 0, lending.slice_weights(index, 20, 48))
            part = Part(lender=1, first=30, stop=44)
            decision |= {(index, kind): [part] for kind in (Kind.F, Kind.I, Kind.W)}
    expected, got = train(plain, None, {}, WeightQueue()), train(model, lending, decision, queue)
    lending.settle(helper.give_back())
    expected += [parameter.grad for parameter in plain.parameters()]
    got += [parameter.grad for parameter in model.parameters()]
    assert len(helper.requests) >= 2 * len(decision)
    if moving == "everything":
        for one, other in zip(expected, got, strict=True):
            assert (one - other).abs().max() <= 1e-6 * one.abs().max()
    else:
        assert all(torch.equal(one, other) for one, other in zip(expected, got, strict=True))


def test_blocks_are_found_in_order_with_what_can_move():
    found = [(b.name, b.piece.name, b.units) for b in migratable(made("llama")).blocks]
    assert found == [
        ("layers.0.attention", "HEADS", 2), ("layers.0.feed_forward", "SLICE", 48),
        ("layers.1.attention", "HEADS", 2), ("layers.1.feed_forward", "SLICE", 48),
    ]  # fmt: skip
    found = [(b.name, b.piece.name, b.units) for b in migratable(made("encoder")).blocks]
    assert found == [
        ("layers.0", "SLICE", 48), ("layers.0.self_attn", "HEADS", 4),
        ("layers.1", "SLICE", 48), ("layers.1.self_attn", "HEADS", 4),
    ]  # fmt: skip


def test_a_copy_moves_its_own_weights():
    model = made("llama")
    migratable(model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    x = torch.randn(1, LENGTH, WIDTH)
    assert torch.equal(copied(x), x)
    assert not torch.equal(model(x), x)


def test_autocast_gives_the_same():
    plain, model = made("llama"), made("llama")
    lending = migratable(model)
    lending.helper = LoopbackHelper()
    lending.begin({(0, Kind.F): [Part(lender=1, first=0, stop=1)]}, 0)
    x = torch.randn(2, LENGTH, WIDTH)
    results = []
    for net in (plain, model):
        with torch.autocast("cpu", torch.bfloat16):
            output = net(x)
        output.float().square().mean().backward()
        results.append([output, *(p.grad for p in net.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_evaluation_may_move_too():
    plain, model = made("gpt"), made("gpt")
    lending = migratable(model)
    lending.helper = helper = LoopbackHelper()
    lending.begin({(0, Kind.F): [Part(lender=1, first=0, stop=2)]}, 0)
    x = torch.randn(2, LENGTH, WIDTH)
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
    assert [request.keep for request in helper.requests] == [False]


def test_dropout_is_refused():
    with pytest.raises(CannotMoveError, match=r"'self_attn' has a dropout of 0\.1"):
        migratable(nn.ModuleDict({"self_attn": nn.MultiheadAttention(WIDTH, 4, dropout=0.1)}))
    with pytest.raises(CannotMoveError, match=r"has a dropout of 0\.1"):
        migratable(nn.TransformerEncoderLayer(WIDTH, 4, 48))
    model = made("llama of other names")
    model.layers[1].self_attn.attention_dropout = 0.2
    with pytest.raises(CannotMoveError, match=r"'layers\.1\.self_attn' has a dropout of 0\.2"):
        migratable(model)


def test_a_model_without_known_blocks_is_refused():
    with pytest.raises(CannotMoveError, match="Sequential has no attention or MLP"):
        migratable(nn.Sequential(nn.Linear(2, 2)))


def test_an_mlp_that_is_not_what_its_names_say_is_refused():
    class Residual(Gated):
        def forward(self, x):
            return x + super().forward(x)

    class Swapped(Gated):
        def forward(self, x):
            return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))

    for wrong in (Residual(), Swapped()):
        forwards = {name: vars(layer).get("forward") for name, layer in wrong.named_children()}
        with pytest.raises(CannotMoveError, match=r"is not down\(f\(gate\(x\)\) \* up\(x\)\)"):
            migratable(wrong)
        assert forwards == dict.fromkeys(forwards)
    unknown = Gated()
    unknown.act_fn = nn.Mish()
    with pytest.raises(CannotMoveError, match="one of silu, gelu, gelu_tanh, relu"):
        migratable(unknown)


def test_conversion_happens_once():
    model = made("gpt")
    migratable(model)
    with pytest.raises(CannotMoveError, match=r"'blocks\.0' moves work already"):
        migratable(model)


def test_conversion_needs_no_weights():
    with torch.device("meta"):
        model = made("llama")
    assert len(migratable(model).blocks) == 4


def test_attention_that_does_not_call_the_function_says_so():
    attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
    lending = migratable(attention)
    lending.helper = LoopbackHelper()
    x = torch.randn(1, LENGTH, WIDTH)
    lending.begin({}, 0)
    attention(x, x, x)
    lending.begin({(0, Kind.F): [Part(lender=1, first=0, stop=2)]}, 0)
    with pytest.raises(CannotMoveError, match="need_weights=False"):
        attention(x, x, x)


def test_a_tiny_gpt_learns_with_everything_moving():
    """Fifty optimizer steps: heads bitwise, slices close."""
    config = GPTConfig(num_layers=2, d_model=WIDTH, sequence=LENGTH)

    def losses(pieces, num_steps=50):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            model = GPTStage(config, 2, is_first=True, is_last=True)
        lending, queue = migratable(model), WeightQueue()
        defer_weight_gradients(model, queue)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        generator, found = torch.Generator().manual_seed(9), []
        helper = LoopbackHelper()
        lending.helper = helper if pieces else None
        for step in range(num_steps):
            lending.version = step
            decision = {}
            for index, block in enumerate(lending.blocks):
                if block.piece in pieces:
                    first, stop = block.units // 2, block.units
                    kinds = Kind if block.piece is Piece.SLICE else (Kind.F, Kind.I)
                    decision |= {
                        (index, kind): [Part(lender=1, first=first, stop=stop)] for kind in kinds
                    }
                    if block.piece is Piece.SLICE:
                        weights = lending.slice_weights(index, first, stop)
                        helper.store(1).put((0, index, first, stop), step, weights)
            for microbatch in range(2):
                tokens = torch.randint(32, (2, LENGTH), generator=generator)
                lending.begin(decision, microbatch)
                loss = next_token_loss(model(tokens), tokens)
                loss.backward()
                queue.take()()
                found.append(loss.item())
            lending.settle(helper.give_back())
            optimizer.step()
            optimizer.zero_grad()
        return found

    alone = losses(())
    assert losses((Piece.HEADS,)) == alone
    moved = losses((Piece.HEADS, Piece.SLICE))
    assert moved[:10] == losses((Piece.HEADS, Piece.SLICE), num_steps=5)
    assert moved == pytest.approx(alone, rel=1e-4)
    assert alone[-1] < 0.8 * alone[0]
