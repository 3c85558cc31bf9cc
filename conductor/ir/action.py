"""One operation of one stage on one micro-batch."""

from __future__ import annotations

import re
from typing import NamedTuple

from conductor.errors import FormatError
from conductor.problem.kind import Kind

_ACTION = re.compile(r"(\d+)([A-Z])(\d+)(?:\.(\d+))?")


class Action(NamedTuple):
    """One operation: `2F0` is stage 2, forward, micro-batch 0; `2F0.1` its second sequence split."""

    stage: int
    kind: Kind
    microbatch: int
    split: int = 0

    def __str__(self) -> str:
        """The notation of `torch.distributed.pipelining`, with `.split` where there is one."""
        split = f".{self.split}" if self.split else ""
        return f"{self.stage}{self.kind.name}{self.microbatch}{split}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Reads `2F0`, `2I0`, `2W0`, `2B0` or `2F0.1`.

        Raises:
            FormatError: the text is no action.
        """
        match = _ACTION.fullmatch(text.strip())
        if match is None or match[2] not in Kind.__members__:
            raise FormatError(f"{text.strip()!r} is no action (an action looks like 2F0)")
        return cls(int(match[1]), Kind[match[2]], int(match[3]), int(match[4] or 0))
