"""`migratable`: makes the blocks of a module able to move work, in place."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from conductor.errors import CannotMoveError
from conductor.migration.modules.activation import ACTIVATIONS, hidden_of
from conductor.migration.modules.attention import MigratableAttention
from conductor.migration.modules.lending import Lending
from conductor.migration.modules.mlp import MigratableMLP

_ATTENTIONS = (
    ("wq", "wk", "wv", "wo"),
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("query_key_value", "projection"),
)
_MLPS = (
    ("w3", "w2", "w1"),
    ("up_proj", "down_proj", "gate_proj"),
    ("linear1", "linear2"),
    ("up", "down"),
)
"""Names of up, down and, where there is one, gate."""
_METHODS = {"attention": ("attend",), "mlp": ("_ff_block", "feed_forward")}
"""Methods that are the block, where a module is more than that; else its forward is."""
_KV_HEADS = (
    "n_kv_heads", "num_kv_heads", "num_key_value_heads", "n_heads", "num_heads", "n_head",
)  # fmt: skip
_DROPOUTS = ("dropout", "dropout2", "attention_dropout", "attn_dropout", "dropout_p")


def migratable(module: nn.Module, stage: int = 0) -> Lending:
    """Makes the blocks of a stage able to move work. Parameters and `state_dict` stay as they are.

    Blocks are known by their type or the names of their layers: `nn.MultiheadAttention`, and modules with
    `wq`, `wk`, `wv`, `wo` or `q_proj`, `k_proj`, `v_proj`, `o_proj`, whose heads move wherever they call
    `torch.nn.functional.scaled_dot_product_attention`; MLPs with `w1`, `w2`, `w3`, or `gate_proj`,
    `up_proj`, `down_proj`, or `linear1`, `linear2` as in `nn.TransformerEncoderLayer`, or `up`, `down`.
    `MigratableAttention` and `MigratableMLP` within the module are taken as they are.

    Args:
        module: the stage's part of the model.
        stage: its index in the pipeline.

    Returns:
        What the executor tells what moves; its `blocks` are those found, in order.

    Raises:
        CannotMoveError: there are no such blocks, one has dropout, or an MLP is not what its names say.
    """
    lending = Lending(stage)
    for name, found in module.named_modules():
        for block in _blocks(found, name):
            block.lending, block.block = lending, len(lending.blocks)
            lending.blocks.append(block)
    if not lending.blocks:
        raise CannotMoveError(
            f"{type(module).__name__} has no attention or MLP that is known by its names"
        )
    return lending


def _blocks(module: nn.Module, name: str) -> Iterator[MigratableAttention | MigratableMLP]:
    """The blocks that a module itself is, without those within it."""
    if isinstance(module, MigratableAttention | MigratableMLP):
        if module.lending is not None:
            raise CannotMoveError(f"{name!r} moves work already")
        module.name = name
        yield module
        return
    if isinstance(module, nn.MultiheadAttention):
        yield _attention(module, name, module.num_heads, module.embed_dim)
    elif names := _names(module, _ATTENTIONS):
        width = getattr(module, names[0]).out_features // (3 if len(names) == 2 else 1)
        yield _attention(module, name, _num_groups(module, names[1]), width)
    if names := _names(module, _MLPS):
        yield _mlp(module, name, *(getattr(module, layer) for layer in names))


def _names(module: nn.Module, known: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    for names in known:
        if all(isinstance(getattr(module, name, None), nn.Linear) for name in names):
            return names
    return ()


def _attention(
    module: nn.Module, name: str, groups: int | None, features: int
) -> MigratableAttention:
    _refuse_dropout(module, name)
    block = MigratableAttention(name)
    block.units, block.features = groups, features
    method, original = _method(module, name, "attention")
    _replace(module, method, partial(_rerouted, original, block))
    return block


def _num_groups(module: nn.Module, key: str) -> int | None:
    """KV heads as far as attributes tell; the first run knows better."""
    width = getattr(module, "head_dim", None)
    if isinstance(width, int) and key != "projection":
        return int(getattr(module, key).out_features // width)
    counts = (getattr(module, count, None) for count in _KV_HEADS)
    return next((count for count in counts if isinstance(count, int)), None)


def _mlp(
    module: nn.Module, name: str, up: nn.Linear, down: nn.Linear, gate: nn.Linear | None = None
) -> MigratableMLP:
    _refuse_dropout(module, name)
    method, original = _method(module, name, "mlp")
    for layer in (up, down, gate):
        if layer is not None and type(layer).forward is not nn.Linear.forward:
            raise CannotMoveError(f"{name!r} has a {type(layer).__name__}, not plain linear layers")
    activation = _find_activation(original, up, down, gate)
    if activation is None:
        formula = "down(f(up(x)))" if gate is None else "down(f(gate(x)) * up(x))"
        raise CannotMoveError(f"{name!r} is not {formula} with f one of {', '.join(ACTIVATIONS)}")
    block = MigratableMLP(up, down, gate, activation=activation, name=name)
    _replace(module, method, partial(_mlp_forward, original, block))
    return block


def _rerouted(
    original: Callable[..., Any], block: MigratableAttention, *args: Any, **kwargs: Any
) -> Any:
    """Runs an attention with its `scaled_dot_product_attention` in the block's hands."""
    lending = block.lending
    if lending is None or lending.helper is None:
        return original(*args, **kwargs)
    route = _Route(block)
    with route:
        result = original(*args, **kwargs)
    if lending.moves(block.block) and not route.was_taken:
        raise CannotMoveError(
            f"{block.name!r} did not call scaled_dot_product_attention (nn.MultiheadAttention does"
            " with need_weights=False)"
        )
    return result


class _Route(TorchFunctionMode):
    """Puts a block in the place of `scaled_dot_product_attention`, on this thread."""

    def __init__(self, block: MigratableAttention) -> None:
        super().__init__()
        self._block = block
        self.was_taken = False

    def __torch_function__(
        self, func: Any, types_: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is functional.scaled_dot_product_attention:
            self.was_taken = True
            func = self._block.forward
        elif func is functional.multi_head_attention_forward:
            # Its own call is out of a mode's sight: the same code, with another function of that name.
            own = {**vars(functional), "scaled_dot_product_attention": self._attend}
            func = types.FunctionType(func.__code__, own, argdefs=func.__defaults__)
        return func(*args, **(kwargs or {}))

    def _attend(self, *args: Any, **kwargs: Any) -> Tensor:
        self.was_taken = True
        return self._block.forward(*args, **kwargs)


def _mlp_forward(original: Callable[[Tensor], Tensor], block: MigratableMLP, x: Tensor) -> Tensor:
    lending = block.lending
    return original(x) if lending is None or lending.helper is None else block(x)


def _find_activation(
    original: Callable[[Tensor], Tensor], up: nn.Linear, down: nn.Linear, gate: nn.Linear | None
) -> str | None:
    """The activation with which an MLP's code is the formula, found by running it on other layers.

    The layers are stood in for by tables: what the weights are, and where, does not matter.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, up.in_features, generator=generator)
    inner = [3 * torch.randn(1, 2, up.out_features, generator=generator) for _ in (gate, up)]
    output = torch.randn(1, 2, down.out_features, generator=generator)
    seen: dict[nn.Linear, Tensor] = {}

    def stand_in(layer: nn.Linear, gives: Tensor, given: Tensor) -> Tensor:
        seen[layer] = given
        return gives

    tables = {up: inner[1], down: output}
    if gate is not None:
        tables[gate] = inner[0]
    else:
        inner = inner[1:]
    before = {layer: vars(layer).get("forward") for layer in tables}
    try:
        for layer, gives in tables.items():
            _replace(layer, "forward", partial(stand_in, layer, gives))
        with torch.no_grad():
            result = original(x)
    except Exception:  # whatever it is, it is no MLP of one input
        return None
    finally:
        for layer, forward in before.items():
            del layer.forward
            if forward is not None:
                _replace(layer, "forward", forward)
    firsts = [layer for layer in tables if layer is not down]
    if any(layer not in seen for layer in tables) or not torch.equal(result, output):
        return None
    if not all(torch.equal(seen[layer], x) for layer in firsts):
        return None
    for index, name in enumerate(ACTIVATIONS):
        if torch.equal(seen[down], hidden_of(inner, index)):
            return name
    return None


def _refuse_dropout(module: nn.Module, name: str) -> None:
    for attribute in _DROPOUTS:
        dropout = getattr(module, attribute, None)
        share = dropout.p if isinstance(dropout, nn.Dropout) else dropout
        if isinstance(share, float) and share > 0.0:
            raise CannotMoveError(f"{name!r} has a dropout of {share:g}; work moves only without")


def _method(module: nn.Module, name: str, block: str) -> tuple[str, Callable[..., Any]]:
    """The method of a module that is its block."""
    method = next((m for m in _METHODS[block] if hasattr(module, m)), "forward")
    original: Callable[..., Any] = getattr(module, method)
    if isinstance(original, partial) and original.func in (_rerouted, _mlp_forward):
        raise CannotMoveError(f"{name!r} moves work already")
    return method, original


def _replace(module: nn.Module, method: str, new: Callable[..., Any]) -> None:
    object.__setattr__(module, method, new)
