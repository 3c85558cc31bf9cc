"""Text to learn from: sums with their results, made from a seed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

ALPHABET = "0123456789+=;"


def sums_batch(num_samples: int, sequence: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Samples of text such as `7+5=12;3+9=12;`, one token a character.

    Returns:
        Inputs and, one character on, targets; int64, shape (num_samples, sequence).
    """
    rows = []
    for _ in range(num_samples):
        text = ""
        while len(text) < sequence + 1:
            one, other = rng.integers(0, 10, 2).tolist()
            text += f"{one}+{other}={one + other};"
        rows.append([ALPHABET.index(letter) for letter in text[: sequence + 1]])
    tokens = torch.tensor(rows, dtype=torch.int64)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
