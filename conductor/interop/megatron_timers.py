"""Timers in logs of Megatron-LM: what a micro-batch takes on each pipeline rank.

`--timing-log-level 2 --timing-log-option all` makes it log, every `--log-interval` iterations,

    times across ranks (ms):
      forward-compute:
         rank  0: 812.34
         rank  1: 809.92

where a time is that of all micro-batches of an iteration. The device is synchronised around each, so that no
waiting for other ranks is in it. The other options log only the least or greatest time over all ranks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from conductor.errors import FormatError
from conductor.ir.schedule import FloatArray
from conductor.problem.spec import PipelineSpec

_TIMER = re.compile(r"([\w/-]+):\s*$")
_RANK = re.compile(r"\brank +(\d+): +(\d+(?:\.\d+)?)\s*$")
_ALL = "times across ranks (ms):"
_EXTREMES = "max) time across ranks (ms):", "max time across ranks (ms):"


def read_megatron_timers(
    path: str | Path, *, num_ranks: int, num_microbatches: int, input_share: float
) -> PipelineSpec:
    """Expected times from a log, one stage a rank; medians over the logged iterations.

    Ranks are taken to be in Megatron's usual order: those of one pipeline rank follow each other. A rank
    with several virtual stages counts as one. The log has no transfers without waiting, and no memory.

    Args:
        path: the log, with whatever else is in it.
        num_ranks: pipeline-parallel size.
        num_microbatches: of an iteration, on each data-parallel rank.
        input_share: share of a backward that is for the input.

    Raises:
        FormatError: the file cannot be read, or does not have the times of each rank.
    """
    path = Path(path)
    timers: dict[str, list[dict[int, float]]] = defaultdict(list)
    only_extremes = False
    block: dict[int, float] | None = None
    inside = False
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                rank = _RANK.search(line)
                if rank is not None and block is not None:
                    block[int(rank[1])] = float(rank[2])
                    continue
                block = None
                only_extremes |= any(each in line for each in _EXTREMES)
                timer = _TIMER.search(line)
                if _ALL in line:
                    inside = True
                elif inside and timer is not None:
                    block = {}
                    timers[timer[1]].append(block)
                else:
                    inside = False
    except OSError as error:
        raise FormatError(f"{path}: cannot read the log: {error.strerror}") from None
    if not timers:
        why = " but those of the fastest and slowest rank" if only_extremes else ""
        raise FormatError(
            f"{path}: no times across ranks in this log{why}: Megatron logs them with --timing-log-option all"
        )
    world = 1 + max(
        (rank for blocks in timers.values() for each in blocks for rank in each), default=0
    )
    if world % num_ranks:
        raise FormatError(f"{path}: {world} ranks do not divide into {num_ranks} pipeline ranks")
    forward, backward = (
        _medians(path, name, timers.get(name, ()), world).reshape(num_ranks, -1).mean(axis=1)
        / num_microbatches
        for name in ("forward-compute", "backward-compute")
    )
    return PipelineSpec(
        name=path.stem,
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        forward_ms=tuple(forward.tolist()),
        backward_input_ms=tuple((input_share * backward).tolist()),
        backward_weight_ms=tuple(((1.0 - input_share) * backward).tolist()),
        source=f"timers that Megatron-LM logged in {path.name}",
    )


def _medians(path: Path, name: str, blocks: Sequence[dict[int, float]], world: int) -> FloatArray:
    """Median of a timer on each rank, over the blocks that have all ranks."""
    whole = [each for each in blocks if len(each) == world]
    if not whole:
        what = f"{name} of all {world} ranks" if blocks else name
        raise FormatError(
            f"{path}: no {what} in this log: Megatron logs it with --timing-log-level 2"
        )
    medians: FloatArray = np.median(
        [[each[rank] for rank in range(world)] for each in whole], axis=0
    )
    return medians
