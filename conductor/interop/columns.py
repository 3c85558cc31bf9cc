"""Columns of Parquet and CSV files as NumPy arrays, read batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from conductor.errors import FormatError

Progress = Callable[[int, int], None]
"""Called with what is read and with the whole, in one unit."""


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of texts: `values[codes[row]]`."""

    codes: npt.NDArray[np.int32]
    values: tuple[str, ...]

    def mapped(self, meaning: dict[str, int]) -> npt.NDArray[np.int64]:
        """Each row's meaning; -1 where it has none."""
        table = np.array([meaning.get(value, -1) for value in self.values], np.int64)
        return table[self.codes] if len(table) else np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Columns:
    """A file's columns.

    Attributes:
        path: the file.
        numbers: float64 or int64 arrays by name.
        texts: by name.
    """

    path: Path
    numbers: dict[str, npt.NDArray[Any]]
    texts: dict[str, Texts]

    def whole(self, name: str) -> npt.NDArray[np.int64]:
        """A column as whole numbers."""
        return np.ascontiguousarray(self._number(name), np.int64)

    def real(self, name: str) -> npt.NDArray[np.float64]:
        """A column as real numbers."""
        return np.ascontiguousarray(self._number(name), np.float64)

    def text(self, name: str) -> Texts:
        """A column of texts."""
        if name not in self.texts:
            raise FormatError(f"{self.path}: column {name} must hold texts")
        return self.texts[name]

    def _number(self, name: str) -> npt.NDArray[Any]:
        if name not in self.numbers:
            raise FormatError(f"{self.path}: column {name} must hold numbers")
        return self.numbers[name]


def read_columns(
    path: Path, names: Sequence[str], *, on_progress: Progress | None = None
) -> Columns:
    """Reads some columns of a `.parquet` or `.csv` file; only one batch is held beside the result.

    Raises:
        FormatError: the file cannot be read, lacks a column, or has an empty cell.
    """
    import pyarrow as pa

    parts: dict[str, list[Any]] = {name: [] for name in names}
    try:
        for batch in _batches(path, names, on_progress):
            for name in names:
                column = batch.column(batch.schema.get_field_index(name))
                if column.null_count:
                    raise FormatError(f"{path}: column {name} has {column.null_count} empty cells")
                if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                    column = column.dictionary_encode()
                parts[name].append(column)
    except (pa.ArrowException, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0].rstrip(".")
        raise FormatError(f"{path}: cannot read the table: {reason}") from None
    numbers: dict[str, npt.NDArray[Any]] = {}
    texts: dict[str, Texts] = {}
    for name, arrays in parts.items():
        if not arrays:
            raise FormatError(f"{path}: the table has no rows")
        if pa.types.is_dictionary(arrays[0].type):
            # Batches may number their texts differently.
            whole = pa.chunked_array(arrays).unify_dictionaries().combine_chunks()
            whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
            codes = np.from_dlpack(whole.indices).astype(np.int32)
            texts[name] = Texts(codes, tuple(whole.dictionary.to_pylist()))
        elif pa.types.is_integer(arrays[0].type) or pa.types.is_floating(arrays[0].type):
            # Not to_numpy: that would load pandas.
            numbers[name] = np.concatenate([np.from_dlpack(array) for array in arrays])
        else:
            raise FormatError(f"{path}: column {name} holds {arrays[0].type}, not numbers or texts")
    return Columns(path, numbers, texts)


def column_names(path: Path) -> tuple[str, ...]:
    """The names of the columns of a `.parquet` or `.csv` file.

    Raises:
        FormatError: the file cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.suffix == ".parquet":
            return tuple(pq.read_schema(path).names)
        with path.open(encoding="utf-8") as file:
            return tuple(name.strip().strip('"') for name in file.readline().split(","))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0].rstrip(".")
        raise FormatError(f"{path}: cannot read the table: {reason}") from None


def _batches(path: Path, names: Sequence[str], on_progress: Progress | None) -> Iterator[Any]:
    """Record batches of the file."""
    import pyarrow.csv
    import pyarrow.parquet

    missing = [name for name in names if name not in column_names(path)]
    if missing:
        raise FormatError(
            f"{path}: {'a column is' if len(missing) == 1 else 'columns are'} missing: {', '.join(missing)}"
        )
    if path.suffix == ".parquet":
        with pyarrow.parquet.ParquetFile(path) as file:
            done, total = 0, file.metadata.num_rows
            for batch in file.iter_batches(batch_size=1 << 18, columns=list(names)):
                done += batch.num_rows
                yield batch
                if on_progress is not None:
                    on_progress(done, total)
        return
    options = pyarrow.csv.ConvertOptions(include_columns=list(names))
    with pyarrow.csv.open_csv(path, convert_options=options) as reader:
        done, total = 0, path.stat().st_size
        for batch in reader:
            done = min(total, done + batch.nbytes)
            yield batch
            if on_progress is not None:
                on_progress(done, total)
