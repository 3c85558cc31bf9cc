"""A small GPT in stages, to try and to measure plans with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from conductor.errors import InvalidSpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """Sizes of a GPT.

    Attributes:
        num_layers: transformer blocks in all stages together.
        d_model: width.
        num_heads: attention heads, each `d_model / num_heads` wide.
        sequence: tokens in a sample.
        vocabulary: different tokens.
        checkpointing: keep only each block's input and compute its forward again in the backward.
        bf16: parameters and activations in bfloat16 instead of fp32.
    """

    num_layers: int = 8
    d_model: int = 64
    num_heads: int = 4
    sequence: int = 32
    vocabulary: int = 32
    checkpointing: bool = False
    bf16: bool = False

    def __post_init__(self) -> None:
        """Checks that the heads divide the width.

        Raises:
            InvalidSpecError: they do not.
        """
        if self.d_model % self.num_heads:
            raise InvalidSpecError(
                f"d_model {self.d_model} is not divisible by {self.num_heads} heads"
            )

    @property
    def dtype(self) -> torch.dtype:
        """Of parameters and activations."""
        return torch.bfloat16 if self.bf16 else torch.float32


class GPTBlock(nn.Module):
    """Causal self-attention and an MLP, each behind a layer norm and beside a residual."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width = config.d_model
        self.num_heads, self.checkpointing = config.num_heads, config.checkpointing
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, sequence, d_model), in and out."""
        if self.checkpointing and torch.is_grad_enabled():
            output: Tensor = checkpoint(self._block, x, use_reentrant=False)
            return output
        return self._block(x)

    def _block(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.attention_norm(x))
        return x + self.feed_forward(self.mlp_norm(x))

    def attend(self, x: Tensor) -> Tensor:
        """Causal self-attention."""
        batch, length, width = x.shape
        parts = self.query_key_value(x)
        heads = parts.view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        return projected

    def feed_forward(self, x: Tensor) -> Tensor:
        """The MLP."""
        output: Tensor = self.down(functional.gelu(self.up(x)))
        return output


class GPTStage(nn.Module):
    """Some consecutive blocks, with the embedding in the first stage and the head in the last."""

    def __init__(
        self, config: GPTConfig, num_layers: int, *, is_first: bool, is_last: bool
    ) -> None:
        super().__init__()
        width = config.d_model
        self.tokens = nn.Embedding(config.vocabulary, width) if is_first else None
        self.positions = nn.Embedding(config.sequence, width) if is_first else None
        self.blocks = nn.ModuleList(GPTBlock(config) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width) if is_last else None
        self.head = nn.Linear(width, config.vocabulary, bias=False) if is_last else None

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (batch, sequence) or activations; gives activations, or logits from the last stage."""
        if self.tokens is not None and self.positions is not None:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def gpt_stage(
    config: GPTConfig, stage: int, layers_per_stage: Sequence[int], *, seed: int = 0
) -> GPTStage:
    """One stage; every stage has a seed of its own, so that a rank makes only what it holds."""
    # The initialisation of modules draws from the global generator: it is put back as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed * 1_000_003 + stage)
        module = GPTStage(
            config,
            layers_per_stage[stage],
            is_first=stage == 0,
            is_last=stage == len(layers_per_stage) - 1,
        )
    return module.to(config.dtype)


def spread_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Layers of each stage, as even as can be; the first stages get what is over.

    >>> spread_layers(10, 4)
    (3, 3, 2, 2)

    Raises:
        InvalidSpecError: some stage would have none.
    """
    if num_layers < num_stages:
        raise InvalidSpecError(f"{num_layers} layers do not fill {num_stages} stages")
    return tuple(
        num_layers // num_stages + (stage < num_layers % num_stages) for stage in range(num_stages)
    )


def stage_shapes(
    config: GPTConfig, stage: int, num_stages: int, rows: int
) -> tuple[Tensor, Tensor]:
    """Inputs and outputs of one micro-batch of `rows` samples, as tensors without data."""
    tokens = torch.empty(rows, config.sequence, dtype=torch.int64, device="meta")
    activations = torch.empty(
        rows, config.sequence, config.d_model, dtype=config.dtype, device="meta"
    )
    logits = torch.empty(
        rows, config.sequence, config.vocabulary, dtype=config.dtype, device="meta"
    )
    return (
        tokens if stage == 0 else activations,
        logits if stage == num_stages - 1 else activations,
    )


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, in fp32."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
