"""Helps: work of actions that other ranks do, in a simulated or measured step."""

from __future__ import annotations

from dataclasses import dataclass

from conductor.ir.schedule import FloatArray, Int32Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Helps:
    """Work that ranks did for others: migrations; arrays of shape (helps,).

    Attributes:
        actions: int32, program index of the action helped.
        lenders: int32, the rank that helps.
        parts: int32, parts of the action that it does.
        of_parts: parts that can move of an action.
        decided_ms: when it was decided.
        start_ms: from then on the lender is occupied.
        end_ms: until then.
    """

    actions: Int32Array
    lenders: Int32Array
    parts: Int32Array
    of_parts: int
    decided_ms: FloatArray
    start_ms: FloatArray
    end_ms: FloatArray
