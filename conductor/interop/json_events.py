"""The events of a profiler's JSON file, one after another, in bounded memory."""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from conductor.errors import FormatError
from conductor.interop.columns import Progress

CHUNK = 1 << 20
_GZIP = 31
"""zlib's window bits for a gzip file."""
_START = re.compile(r'"traceEvents"\s*:\s*\[')
_HEAD = 1 << 24
"""Characters within which the list of events must begin."""


class Events:
    """Reads `{..., "traceEvents": [...], ...}` piece by piece; gzip by the file's name.

    Attributes:
        note: what cut the reading short; None after a whole file.
        head: the text before the events (the file's facts, such as the rank).
        tail: the text after them.
    """

    def __init__(self, path: Path, *, on_progress: Progress | None = None) -> None:
        """Opens nothing yet."""
        self._path, self._on_progress = path, on_progress
        self.note: str | None = None
        self.head = ""
        self.tail = ""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The events; after damage, those before it.

        Raises:
            FormatError: the file cannot be read, or has no events.
        """
        try:
            with self._path.open("rb") as raw:
                yield from self._parse(self._texts(raw))
        except OSError as error:
            raise FormatError(f"{self._path}: cannot read the trace: {error}") from None

    def _texts(self, raw: BinaryIO) -> Iterator[str]:
        """The text, piece by piece; a cut between two pieces may go through a character."""
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        for block in self._blocks(raw):
            yield decode(block)

    def _blocks(self, raw: BinaryIO) -> Iterator[bytes]:
        total = self._path.stat().st_size
        inflater = zlib.decompressobj(_GZIP) if self._path.suffix == ".gz" else None
        while block := raw.read(CHUNK):
            if self._on_progress is not None:
                self._on_progress(raw.tell(), total)
            if inflater is None:
                yield block
                continue
            try:
                yield inflater.decompress(block)
                while inflater.eof and inflater.unused_data:  # a file may hold several members
                    rest, inflater = inflater.unused_data, zlib.decompressobj(_GZIP)
                    yield inflater.decompress(rest)
            except zlib.error:
                self.note = f"{self._path}: the compressed file is damaged"
                return
        if inflater is not None and not inflater.eof:
            self.note = f"{self._path}: the compressed file is cut off"

    def _parse(self, texts: Iterator[str]) -> Iterator[dict[str, Any]]:
        buffer = ""
        begin = None
        for text in texts:
            buffer += text
            begin = _START.search(buffer)
            if begin is not None or len(buffer) > _HEAD:
                break
        if begin is None:
            raise FormatError(
                self.note or f"{self._path}: no traceEvents in this file: is it a profiler trace?"
            )
        self.head = buffer[: begin.start()]
        decoder = json.JSONDecoder()
        place = begin.end()
        while True:
            while place < len(buffer) and buffer[place] in " \t\r\n,":
                place += 1
            if place < len(buffer) and buffer[place] == "]":
                self.tail = buffer[place + 1 :] + "".join(texts)
                return
            try:
                event, place = decoder.raw_decode(buffer, place)
            except ValueError:
                more = next(texts, None)
                if more is None:
                    self.note = self.note or f"{self._path}: the file is cut off"
                    return
                buffer, place = buffer[place:] + more, 0
                continue
            if isinstance(event, dict):
                yield event
