"""Files of arrays with a card: .npz that numpy alone reads."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from conductor.errors import FormatError


def write_arrays(
    path: str | Path, card: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Writes arrays by name, and a card of JSON values.

    Raises:
        FormatError: the file cannot be written.
    """
    try:
        with open(path, "wb") as file:
            np.savez_compressed(file, card=np.array(json.dumps(card)), **arrays)  # type: ignore[arg-type]  # names
    except OSError as error:
        raise FormatError(f"cannot write {path}: {error.strerror}") from None


def read_arrays(
    path: str | Path, names: Iterable[str], dtype: npt.DTypeLike, what: str
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Reads the card and arrays by name.

    Args:
        path: of the file.
        names: of the arrays.
        dtype: that they are to have.
        what: the file should hold, for messages.

    Raises:
        FormatError: the file cannot be read, or has no card or not all arrays.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            card = json.loads(str(file["card"]))
            return card, {name: np.ascontiguousarray(file[name], dtype) for name in names}
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror or error}") from None
    except (KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise FormatError(f"{path} holds no {what}: {type(error).__name__}") from None
