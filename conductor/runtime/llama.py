"""A small Llama in stages: plain PyTorch, with the layer names of the usual code bases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from conductor.errors import InvalidSpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes of a Llama.

    Attributes:
        num_layers: decoder layers in all stages together.
        d_model: width.
        num_heads: query heads, each `d_model / num_heads` wide.
        num_kv_heads: key and value heads, each for `num_heads / num_kv_heads` query heads.
        mlp_width: hidden width of the MLP.
        sequence: tokens in a sample.
        vocabulary: different tokens.
        checkpointing: keep only each layer's input and compute its forward again in the backward.
        bf16: parameters and activations in bfloat16 instead of fp32.
    """

    num_layers: int = 4
    d_model: int = 64
    num_heads: int = 8
    num_kv_heads: int = 4
    mlp_width: int = 192
    sequence: int = 64
    vocabulary: int = 64
    checkpointing: bool = False
    bf16: bool = False

    def __post_init__(self) -> None:
        """Checks that heads divide.

        Raises:
            InvalidSpecError: they do not.
        """
        if self.d_model % (2 * self.num_heads) or self.num_heads % self.num_kv_heads:
            raise InvalidSpecError(
                f"width {self.d_model}, {self.num_heads} heads and {self.num_kv_heads} KV heads do not"
                " divide (a head has an even width)"
            )

    @property
    def dtype(self) -> torch.dtype:
        """Of parameters and activations."""
        return torch.bfloat16 if self.bf16 else torch.float32


class Attention(nn.Module):
    """Causal self-attention with grouped key and value heads and rotary positions."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.d_model // config.num_heads
        kv_width = config.num_kv_heads * self.head_dim
        self.wq = nn.Linear(config.d_model, config.d_model, bias=False)
        self.wk = nn.Linear(config.d_model, kv_width, bias=False)
        self.wv = nn.Linear(config.d_model, kv_width, bias=False)
        self.wo = nn.Linear(config.d_model, config.d_model, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """Shape (batch, sequence, d_model), in and out; `angles` of shape (sequence, head_dim / 2)."""
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer in (self.wq, self.wk, self.wv)
        )
        attended = functional.scaled_dot_product_attention(
            rotate(query, angles), rotate(key, angles), value, is_causal=True, enable_gqa=True
        )
        output: Tensor = self.wo(attended.transpose(1, 2).flatten(2))
        return output


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.d_model, config.mlp_width, bias=False)
        self.w2 = nn.Linear(config.mlp_width, config.d_model, bias=False)
        self.w3 = nn.Linear(config.d_model, config.mlp_width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, sequence, d_model), in and out."""
        output: Tensor = self.w2(functional.silu(self.w1(x)) * self.w3(x))
        return output


class Layer(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.checkpointing = config.checkpointing
        self.attention_norm = nn.RMSNorm(config.d_model, eps=1e-5)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.d_model, eps=1e-5)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """Shape (batch, sequence, d_model), in and out."""
        if self.checkpointing and torch.is_grad_enabled():
            output: Tensor = checkpoint(self._layer, x, angles, use_reentrant=False)
            return output
        return self._layer(x, angles)

    def _layer(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), angles)
        output: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return output


class LlamaStage(nn.Module):
    """Some consecutive layers, with the embedding in the first stage and the head in the last."""

    angles: Tensor

    def __init__(
        self, config: LlamaConfig, num_layers: int, *, is_first: bool, is_last: bool
    ) -> None:
        super().__init__()
        width = config.d_model
        self.tok_embeddings = nn.Embedding(config.vocabulary, width) if is_first else None
        self.layers = nn.ModuleList(Layer(config) for _ in range(num_layers))
        self.norm = nn.RMSNorm(width, eps=1e-5) if is_last else None
        self.output = nn.Linear(width, config.vocabulary, bias=False) if is_last else None
        angles = rotary_angles(config.sequence, width // config.num_heads)
        self.register_buffer("angles", angles, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (batch, sequence) or activations; gives activations, or logits from the last stage."""
        if self.tok_embeddings is not None:
            x = self.tok_embeddings(x)
        for layer in self.layers:
            x = layer(x, self.angles[: x.shape[1]])
        if self.norm is not None and self.output is not None:
            x = self.output(self.norm(x))
        return x


def rotary_angles(sequence: int, head_dim: int) -> Tensor:
    """Angle of each pair of a head's numbers at each position, (sequence, head_dim / 2), fp32."""
    speeds = 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    return torch.outer(torch.arange(sequence).float(), speeds)


def rotate(heads: Tensor, angles: Tensor) -> Tensor:
    """Turns each pair of neighbouring numbers of (batch, heads, sequence, head_dim) by its angle."""
    even, odd = heads[..., ::2].float(), heads[..., 1::2].float()
    cos, sin = angles.float().cos(), angles.float().sin()
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).to(heads.dtype)


def llama_stage(
    config: LlamaConfig, stage: int, layers_per_stage: Sequence[int], *, seed: int = 0
) -> LlamaStage:
    """One stage; every stage has a seed of its own, so that a rank makes only what it holds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed * 1_000_003 + stage)
        module = LlamaStage(
            config,
            layers_per_stage[stage],
            is_first=stage == 0,
            is_last=stage == len(layers_per_stage) - 1,
        )
    for parameter in module.parameters():
        parameter.data = parameter.data.to(config.dtype)
    return module
