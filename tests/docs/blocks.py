"""The commands and files of a page, in its order.

A page may say how a block is meant, in a comment on the line before it:

- `<!-- file: NAME -->`: the block is a file that commands further down need;
- `<!-- run: slow -->`: its commands take more than a few seconds;
- `<!-- run: exit 2 -->`: its command refuses its input;
- `<!-- run: no, REASON -->`: it is not run; its options are still checked.

Lines of a `console` block that are no command are output, which must be there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

PROGRAMS = ("conductor", "python", "torchrun", "make", "pip", "pytest", ".")


@dataclass(frozen=True, kw_only=True)
class File:
    """A file that a page gives."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of a page.

    Attributes:
        line: where it stands.
        words: it and its arguments.
        marker: what the page says of it.
        output: what it must print.
    """

    line: int
    words: tuple[str, ...]
    marker: str = ""
    output: tuple[str, ...] = ()

    def __str__(self) -> str:
        return shlex.join(self.words)

    @property
    def exit_code(self) -> int:
        """What it should return."""
        found = re.fullmatch(r"exit (\d+)", self.marker)
        return int(found[1]) if found else 0


def blocks(text: str) -> Iterator[File | Command]:
    """The files and commands of a page."""
    lines = text.splitlines()
    kind, marker, start, body = "", "", 0, list[str]()
    for number, line in enumerate([*lines, ""], 1):
        fence = re.fullmatch(r"```(\w*).*", line)
        if kind in ("", "indented") and line.startswith("    ") and line.strip():
            if not kind:
                kind, start, body = "indented", number, []
            body.append(line[4:])
            continue
        if kind == "indented":
            yield from _commands(body, start, marker)
            kind, marker = "", ""
        if found := re.fullmatch(r"<!-- ((?:file|run): .*) -->", line):
            marker = found[1].removeprefix("run: ")
        elif fence and not kind:
            kind, start, body = f"```{fence[1]}", number + 1, []
        elif fence:
            if marker.startswith("file: "):
                yield File(name=marker.removeprefix("file: "), text="\n".join(body) + "\n")
            elif kind in ("```sh", "```console"):
                yield from _commands(body, start, marker)
            kind, marker = "", ""
        elif kind:
            body.append(line)
        elif line.strip():
            marker = ""


def _commands(body: list[str], start: int, marker: str) -> Iterator[Command]:
    """The commands of a block; output belongs to the command before it."""
    current: tuple[int, str] | None = None
    output: list[str] = []
    for number, line in enumerate(body, start):
        if current and current[1].endswith("\\"):
            current = current[0], current[1][:-1] + line
            continue
        text = line.removeprefix("$ ")
        if text.split()[:1] and text.split()[0] in PROGRAMS:
            if current:
                yield _command(*current, marker, output)
            current, output = (number, text), []
        elif line.strip():
            output.append(line)
    if current:
        yield _command(*current, marker, output)


def _command(line: int, text: str, marker: str, output: list[str]) -> Command:
    words = tuple(shlex.split(text, comments=True))
    return Command(line=line, words=words, marker=marker, output=tuple(output))


def mentioned(text: str) -> Iterator[tuple[str, ...]]:
    """Commands within sentences: `conductor ...` between backquotes, on one line or two."""
    for found in re.findall(r"(?<!`)`(conductor [^`]*)`(?!`)", text):
        yield tuple(shlex.split(" ".join(found.split())))


def python_blocks(text: str) -> list[str]:
    """Blocks of Python."""
    return re.findall(r"```python\n(.*?)```", text, re.S)
