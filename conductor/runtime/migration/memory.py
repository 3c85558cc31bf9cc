"""What a plan of migration has lenders hold, and what the weights at them weigh on the links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from conductor.migration.modules.lending import Lending
from conductor.migration.modules.request import Piece
from conductor.runtime.collectives import gather
from conductor.runtime.exchange.units import Units
from conductor.runtime.executor import ConductorSchedule


def placed(
    units: Units, schedule: ConductorSchedule, most_bytes: int | None
) -> tuple[Units, list[int]]:
    """Leaves out lenders that have no room for slices; every rank calls it.

    A lender holds the slices that it is given, room for their gradients, and two requests with their replies:
    of the help in progress and of the one that is promised.

    Args:
        units: of this rank's stages.
        schedule: whose steps these are.
        most_bytes: that a rank may hold of others; None is what the plan needs.

    Returns:
        The units that stay, and what each rank holds of others at most.
    """
    tokens = {
        stage: prod(shape[:-1]) * dtype.itemsize
        for stage, (shape, dtype) in schedule.boundaries.items()
    }
    weights, message = units.lender_bytes(tokens)
    if most_bytes is not None:
        full = {lender for lender, size in weights.items() if size + 2 * message > most_bytes}
        held = {s: [e for e in each if e[0] not in full] for s, each in units.held.items()}
        units = replace(units, held=held)
        weights, message = units.lender_bytes(tokens)
    rows = gather((weights, message), schedule.group)
    planned = []
    for rank in range(len(rows)):
        others = [row for other, row in enumerate(rows) if other != rank]
        messages = 2 * max((row[1] for row in others), default=0)
        size = sum(row[0].get(rank, 0) for row in others) + messages
        planned.append(size if most_bytes is None else min(size, most_bytes))
    return units, planned


def mlp_messages(schedule: ConductorSchedule, lendings: Mapping[int, Lending]) -> float:
    """The weights of this rank's MLPs, in messages as large as its activations."""
    size = sum(
        tensor.nbytes
        for lending in lendings.values()
        for index, block in enumerate(lending.blocks)
        if block.piece is Piece.SLICE and block.units
        for tensor in lending.slice_weights(index, 0, block.units)
    )
    shapes = schedule.boundaries.values()
    return size / max((prod(shape) * dtype.itemsize for shape, dtype in shapes), default=1)
