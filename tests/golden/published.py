"""The published orders: how each golden record's schedule is made here, and an order's hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conductor.ir.schedule import Schedule
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.schedules.grouped_interleaved import grouped_interleaved
from conductor.schedules.interleaved_1f1b import interleaved_1f1b
from conductor.schedules.registry import build
from conductor.schedules.seq1f1b import seq1f1b

Record = dict[str, Any]
HALF_FREED = ":relb=5"
"""End of a name: I frees half of the activation. The orders are made like those without it."""

_FILE = Path(__file__).parents[2] / "../shared/data/golden_schedules.jsonl"
RECORDS: list[Record] = (
    [json.loads(line) for line in _FILE.read_text().splitlines()] if _FILE.exists() else []
)


def by_name(name: str) -> Callable[[PipelineSpec], Schedule]:
    """A schedule of the registry, chosen as the published program chooses."""
    return lambda spec: build(name, spec, objective="stage-span")


def of_sizes(
    make: Callable[..., Schedule], **more: int | Callable[[int], int]
) -> Callable[[PipelineSpec], Schedule]:
    """A schedule of fixed form; a callable argument is of the number of ranks."""

    def made(spec: PipelineSpec) -> Schedule:
        p = spec.num_ranks
        chosen = {key: value(p) if callable(value) else value for key, value in more.items()}
        return make(p, spec.num_microbatches, **chosen)

    return made


ORDERS: dict[str, Callable[[PipelineSpec], Schedule]] = {
    "1f1b": by_name("1f1b"),
    "vpp:v=2": of_sizes(interleaved_1f1b, num_chunks=2),
    "vpp:v=4": of_sizes(interleaved_1f1b, num_chunks=4),
    "group:v=2:g=half": of_sizes(grouped_interleaved, num_chunks=2, group=lambda p: -(-p // 2)),
    "group:v=2:g=p": of_sizes(grouped_interleaved, num_chunks=2),
    "v1f1b": by_name("v1f1b"),
    "zb:mem=1": by_name("zb-1p"),
    "zb:mem=2": by_name("zb-2p"),
    "zb:mem=inf": by_name("zb"),
    "zbv:mem=1": by_name("zb-v"),
    "zbv:mem=2": by_name("zb-v-2p"),
    "seq1f1b:n=2": of_sizes(seq1f1b, num_splits=2),
    "seq1f1b:n=4": of_sizes(seq1f1b, num_splits=4),
    "handzbv": by_name("zb-v-handmade"),
    "light": by_name("zb-h1-light"),
    "vhalf": by_name("v-half"),
    "vmin": by_name("v-min"),
}
"""How each golden name's schedule is made."""

YARDSTICKS = ("vauto:mem=1", "vauto:mem=half", "vauto:mem=vm", "vauto:mem=third+", "vauto:mem=vh")
"""An exhaustive block search that takes minutes: figures to compare with, no schedule of ours."""


def order_of(record: Record) -> str:
    """The key of a record in `ORDERS`."""
    return str(record["name"]).removesuffix(HALF_FREED)


def spec_of(record: Record) -> PipelineSpec:
    """The rank-level profile of a record."""
    unit = record["cs"] == "unit"
    return PipelineSpec(
        num_ranks=record["p"],
        num_microbatches=record["m"],
        forward_ms=1.0 if unit else 10.0,
        backward_input_ms=1.0 if unit else 10.0,
        backward_weight_ms=1.0 if unit else 7.0,
        transfer_ms=0.0 if unit else 0.4,
        freed_at_backward_input=0.5 if record["name"].endswith(HALF_FREED) else 0.0,
    )


def order_hash(schedule: Schedule, *, last_in_first_out: bool = False) -> str:
    """Hash of an order, in the zero-bubble papers' letters.

    Args:
        schedule: with F, I, W and B.
        last_in_first_out: gives each W the micro-batch of the last I without one. That is how the
            published ZB-H1 light counts; ours takes them in micro-batch order.
    """
    letters = {Kind.F: "F", Kind.I: "B", Kind.W: "W", Kind.B: "BW"}
    rows = []
    for row in schedule.rows:
        pending: list[int] = []
        texts = []
        for stage, kind, microbatch, split in row:
            if kind == Kind.I:
                pending.append(microbatch)
            elif kind == Kind.W and last_in_first_out:
                microbatch = pending.pop()
            texts.append(f"{letters[kind]}{stage}.{microbatch}.{split}")
        rows.append(",".join(texts))
    return hashlib.sha256("|".join(rows).encode()).hexdigest()[:16]
