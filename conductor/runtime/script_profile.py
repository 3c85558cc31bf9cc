"""Measures a program that trains with a `ConductorSchedule`, without a change to it.

`conductor profile SCRIPT` sets two variables in the environment of the program's ranks. Where they are
set, a schedule measures its training steps, writes the spec, and ends the program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from conductor.errors import RankError
from conductor.problem.kind import Kind
from conductor.problem.spec import PipelineSpec
from conductor.problem.spec_file import load_spec, save_spec
from conductor.runtime.activation_memory import ActivationMeter
from conductor.runtime.collectives import gather
from conductor.runtime.deferred import WeightQueue
from conductor.runtime.launch import launch

if TYPE_CHECKING:
    from conductor.runtime.executor import ConductorSchedule

FILE, STEPS = "CONDUCTOR_PROFILE", "CONDUCTOR_PROFILE_STEPS"
"""The spec file to write (and, beside it, `.spread.json`), and the steps that count."""


def profile_script(
    command: Sequence[str], num_ranks: int | None, num_steps: int
) -> tuple[PipelineSpec, dict[str, float]]:
    """Runs a Python program until its schedule has measured enough; its output goes to standard error.

    Args:
        command: the program's path and its arguments.
        num_ranks: how often to start it, as torchrun does; None: once, and it starts its ranks itself.
        num_steps: steps that count; one more warms up.

    Returns:
        The spec, and the interquartile range over the median by kind.

    Raises:
        RankError: it failed, or ended before that.
    """
    with tempfile.TemporaryDirectory(prefix="conductor-") as folder:
        path = Path(folder) / f"{Path(command[0]).stem}.toml"
        variables = {FILE: str(path), STEPS: str(num_steps)}
        program = [sys.executable, *command]
        if num_ranks is None:
            code = subprocess.run(
                program, env={**os.environ, **variables}, stdout=2, check=False
            ).returncode
        else:
            code = launch(program, num_ranks, stdout=2, **variables)
        if code:
            raise RankError(f"{command[0]} ended with code {code}")
        if not path.exists():
            raise RankError(
                f"{command[0]} ended before a ConductorSchedule had run {num_steps + 1} training steps"
            )
        return load_spec(path), json.loads(path.with_suffix(".spread.json").read_text())


def started(schedule: ConductorSchedule) -> ScriptProfile | None:
    """The measurement of a schedule, where the environment asks for one."""
    if not (path := os.environ.get(FILE)):
        return None
    return ScriptProfile(schedule, Path(path), int(os.environ.get(STEPS, "5")))


class ScriptProfile:
    """Watches a schedule until it has run `1 + num_steps` training steps. The first one warms up."""

    def __init__(self, schedule: ConductorSchedule, path: Path, num_steps: int) -> None:
        from conductor.runtime.profiler import Profiler  # which needs the executor

        self._schedule, self._path, self._num_left = schedule, path, num_steps
        self._profiler, self._is_warm = Profiler(schedule), False
        self._meters = {stage.stage_index: self._watch(stage) for stage in schedule.stages}

    def after_step(self) -> None:
        """Takes a training step in; after the last, every rank ends.

        Raises:
            SystemExit: the profile is written.
        """
        if self._is_warm:
            self._profiler.record()
            self._num_left -= 1
        self._is_warm = True
        if self._num_left > 0:
            return
        rows = gather({s: (m.held_bytes, m.freed) for s, m in self._meters.items()},
                      self._schedule.group)  # fmt: skip
        memory = dict(sorted((stage, row) for part in rows for stage, row in part.items()))
        plan = self._schedule.plan
        spread = self._profiler.spread()
        spec = self._profiler.spec(
            name=self._path.stem,
            source=f"measured by conductor profile on {plan.num_ranks} ranks under {plan.name},"
            f" torch {torch.__version__}",
            activation_memory=tuple(float(held) for held, _ in memory.values()),
            freed_at_backward_input=sum(freed for _, freed in memory.values()) / len(memory),
        )
        if dist.get_rank() == 0:
            save_spec(spec, self._path)
            self._path.with_suffix(".spread.json").write_text(json.dumps(spread))
        self._schedule.barrier()
        raise SystemExit(0)

    def _watch(self, stage: Any) -> ActivationMeter:
        """Measures a stage's memory once, and the time of every W that runs within a B."""
        meter, build = ActivationMeter(stage.submod), stage.dw_builder
        queue = getattr(build, "__self__", None)
        if not isinstance(queue, WeightQueue):
            return meter

        def build_watched() -> Callable[[], None]:
            if not self._is_warm:
                meter.after_input_backward(queue.held())
            run = build()

            def run_timed() -> None:
                start = time.perf_counter()
                run()
                is_part = self._is_warm and stage.device.type == "cpu"
                if is_part and Kind.B in self._schedule.plan.kinds:
                    took_ms = 1000.0 * (time.perf_counter() - start)
                    self._profiler.add("W", stage.stage_index, took_ms)

            return run_timed

        stage.dw_builder = build_watched
        return meter
