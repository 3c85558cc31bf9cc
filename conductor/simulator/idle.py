"""Why a rank idles."""

from __future__ import annotations

from enum import IntEnum


class IdleCause(IntEnum):
    """Why a rank idles; the value is the row in `Simulation.idle_ms` and `Timeline.idle_ms`.

    A gap before a forward waits for the previous stage, one before a backward for the next stage. The
    part of a gap in which a later forward had its input, but would have put the rank above its memory
    limit before its turn, counts as memory. After a rank's last action nothing is left to do.
    """

    PREVIOUS_STAGE = 0
    NEXT_STAGE = 1
    MEMORY = 2
    NOTHING_LEFT = 3
