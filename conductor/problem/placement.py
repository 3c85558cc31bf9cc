"""Placements: which rank holds which stage."""

from __future__ import annotations

from typing import Literal

PlacementName = Literal["sequential", "loop", "v"]
PLACEMENT_NAMES: tuple[PlacementName, ...] = ("sequential", "loop", "v")


def stage_ranks(
    placement: PlacementName, num_ranks: int, stages_per_rank: int = 1
) -> tuple[int, ...]:
    """The rank of each stage.

    - `sequential`: rank r holds consecutive stages (`stages_per_rank` of them).
    - `loop`: stages go round the ranks, as in interleaved 1F1B.
    - `v`: stages go up the ranks and come back down, as in ZB-V; with more than two stages a rank
      they zigzag on.

    >>> stage_ranks("sequential", 2, 2)
    (0, 0, 1, 1)
    >>> stage_ranks("loop", 3, 2)
    (0, 1, 2, 0, 1, 2)
    >>> stage_ranks("v", 3, 2)
    (0, 1, 2, 2, 1, 0)
    """
    stages = range(num_ranks * stages_per_rank)
    if placement == "sequential":
        return tuple(stage // stages_per_rank for stage in stages)
    if placement == "loop":
        return tuple(stage % num_ranks for stage in stages)
    last = num_ranks - 1
    return tuple(
        stage % num_ranks if stage // num_ranks % 2 == 0 else last - stage % num_ranks
        for stage in stages
    )


def placement_name(ranks: tuple[int, ...], num_ranks: int) -> PlacementName | None:
    """The name of a stage-to-rank list, or None where it has none.

    With one stage a rank all three are the same list: that is `sequential`.
    """
    if len(ranks) % num_ranks:
        return None
    for name in PLACEMENT_NAMES:
        if ranks == stage_ranks(name, num_ranks, len(ranks) // num_ranks):
            return name
    return None
