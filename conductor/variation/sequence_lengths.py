"""Micro-batches packed from sequences of varying length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conductor.errors import InvalidSpecError
from conductor.ir.schedule import FloatArray
from conductor.variation.kernels import expected_squares, packed_squares
from conductor.variation.variation import Actions, Factor, check_share


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLengths(Factor):
    """A micro-batch takes a N + b sum(l^2): N tokens for all, the squares for attention.

    Each micro-batch is filled with sequences drawn from `lengths`, the last one cut; the factor is the
    same on every stage, forward and backward alike, and has mean 1.

    Attributes:
        lengths: tokens of typical sequences, each as likely as the others; give one twice for twice the
            weight.
        num_tokens: N, tokens of a micro-batch.
        attention_share: share of the expected time that goes with the squares.

    Source: arXiv 2505.05713.
    """

    lengths: tuple[int, ...]
    num_tokens: int
    attention_share: float = 0.5

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidSpecError: names the one that cannot be.
        """
        if not self.lengths or any(
            not isinstance(length, int) or length < 1 for length in self.lengths
        ):
            raise InvalidSpecError("lengths must be whole numbers of tokens, at least 1 each")
        if not isinstance(self.num_tokens, int) or self.num_tokens < 1:
            raise InvalidSpecError(
                f"num_tokens must be a whole number of at least 1, not {self.num_tokens!r}"
            )
        check_share("attention_share", self.attention_share)

    def factors(self, program: Actions, draws: int, rng: np.random.Generator) -> FloatArray:
        """One factor a draw and micro-batch."""
        lengths = np.asarray(self.lengths, np.int64)
        shape = (draws, int(program.microbatches.max()) + 1)
        squares = packed_squares(rng, lengths, self.num_tokens, shape[0] * shape[1]).reshape(shape)
        expected = expected_squares(lengths, self.num_tokens)
        factors = 1.0 - self.attention_share + self.attention_share * squares / expected
        return np.ascontiguousarray(factors[:, program.microbatches])
