"""What ranks tell each other between steps; a rank that is gone is an error in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from conductor.errors import RankError


def gather(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """The values of all ranks of a group, on every rank.

    Raises:
        RankError: a rank is gone or does not answer within the group's timeout.
    """
    values: list[Any] = [None] * dist.get_world_size(group)
    with named("gathers"):
        dist.all_gather_object(values, value, group)
    return values


def broadcast(value: Any, source: int, group: dist.ProcessGroup | None = None) -> Any:
    """The value of one rank of a group, on every rank. Raises as `gather`."""
    box = [value]
    with named("broadcasts"):
        dist.broadcast_object_list(box, group=group, group_src=source)
    return box[0]


def barrier(group: dist.ProcessGroup | None = None) -> None:
    """Waits for all ranks of a group. Raises as `gather`."""
    with named("meets the others"):
        dist.barrier(group)


@contextmanager
def named(what: str) -> Iterator[None]:
    """Makes an error of a collective a `RankError` that says what this rank was doing."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise RankError(
            f"rank {dist.get_rank()} {what} between steps, but another rank is gone: {reason}"
        ) from error
