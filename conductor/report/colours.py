"""Colours of the page and the pictures: Okabe and Ito's, which colour-blind readers tell apart."""

from __future__ import annotations

from conductor.problem.kind import Kind
from conductor.simulator.idle import IdleCause

KIND_COLOURS = {Kind.F: "#56b4e9", Kind.I: "#e69f00", Kind.W: "#f0e442", Kind.B: "#0072b2"}
"""The terminal has the same."""

KIND_INKS = {Kind.F: "#000000", Kind.I: "#000000", Kind.W: "#000000", Kind.B: "#ffffff"}
"""Of text on them."""

KIND_NAMES = {
    Kind.F: "forward",
    Kind.I: "backward for the input",
    Kind.W: "backward for the weights",
    Kind.B: "full backward",
}

CAUSE_COLOURS = {
    IdleCause.PREVIOUS_STAGE: "#cc79a7",
    IdleCause.NEXT_STAGE: "#009e73",
    IdleCause.MEMORY: "#d55e00",
    IdleCause.NOTHING_LEFT: "#999999",
}
"""Drawn pale, and with a hatching each."""

CAUSE_NAMES = {
    IdleCause.PREVIOUS_STAGE: "waits for the previous stage",
    IdleCause.NEXT_STAGE: "waits for the next stage",
    IdleCause.MEMORY: "waits for memory",
    IdleCause.NOTHING_LEFT: "has nothing left to do",
}

CAUSE_HATCHES = {
    IdleCause.PREVIOUS_STAGE: "/",
    IdleCause.NEXT_STAGE: "\\",
    IdleCause.MEMORY: "|",
    IdleCause.NOTHING_LEFT: "",
}

PALE = 0.35
"""How much of a cause's colour its shading has; the rest is the background."""

MEMORY_COLOUR, LIMIT_COLOUR = "#009e73", "#d55e00"


def paler(colour: str, share: float) -> str:
    """A colour on white, of which it is a share."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(share * part + (1.0 - share) * 255):02x}" for part in parts)
