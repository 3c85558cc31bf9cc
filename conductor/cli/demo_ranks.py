"""The demo's part on real ranks: `conductor run` several times under the same realised durations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conductor.errors import ConductorError

VARIATION = """# Each action has its own factor of mean 1.
[[variation]]
kind = "lognormal"
forward = 0.6
backward = 0.6
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Runs to compare, the first with the others.

    Attributes:
        name: of its files.
        heading: shown above.
        runs: what each is called, and its options of `conductor run`.
        varies: whether times vary from action to action.
    """

    name: str
    heading: str
    runs: tuple[tuple[str, tuple[str, ...]], ...]
    varies: bool = True


_SLOW = ("--schedule", "zb-1p", "--heads", "16", "--straggler", "rank=1,factor=1.5")


EXPERIMENTS = (
    Experiment(
        name="order",
        heading="Four real ranks that train, their actions stretched to times that vary (lognormal 0.6)",
        runs=(
            ("1F1B, static", ("--schedule", "1f1b")),
            ("planned order, static", ("--schedule", "zb-2p")),
            ("planned order, ready-first", ("--schedule", "zb-2p", "--execution", "ready-first")),
        ),
    ),
    Experiment(
        name="migration",
        heading="The same ranks, one of them 1.5 times as slow: the others do a part of its work",
        runs=(
            ("slow rank, nothing moves", _SLOW),
            ("slow rank, heads move", (*_SLOW, "--migrate", "--only-heads")),
        ),
        varies=False,
    ),
)
"""One after the other; each is a table and a page with the timelines."""


def run_experiments(folder: Path, steps: int) -> None:
    """Runs and prints all; the files in the folder can be run, read and changed afterwards.

    Raises:
        ConductorError: a run failed.
    """
    from conductor.problem.presets import load_preset
    from conductor.problem.spec_file import save_spec

    folder.mkdir(parents=True, exist_ok=True)
    save_spec(
        load_preset("gpt-like").with_(
            name="four ranks", num_microbatches=16, memory_limit=8.0,
            # Twice the preset's times, beside which what the emulation costs is small.
            forward_ms=20.0, backward_input_ms=20.0, backward_weight_ms=14.0, transfer_ms=0.8,
        ),
        folder / "ranks.toml",
    )  # fmt: skip
    (folder / "variation.toml").write_text(VARIATION)
    for experiment in EXPERIMENTS:
        _run(experiment, folder, steps)


def _run(experiment: Experiment, folder: Path, steps: int) -> None:
    import numpy as np

    from conductor.cli import console

    out = console.console()
    out.print(f"\n{experiment.heading}", style="bold")
    results, timelines = [], []
    for number, (title, options) in enumerate(experiment.runs):
        timelines.append(folder / f"{experiment.name}-{number}.json")
        command = (
            "run", "--emulate", folder / "ranks.toml",
            *(("--variation", folder / "variation.toml") if experiment.varies else ()), *options,
            "--steps", steps, "--layers", 4, "--width", 32,
            "--timeline", timelines[-1], "--json",
        )  # fmt: skip
        out.print(f"{title}: conductor {' '.join(map(str, command))}", soft_wrap=True)
        results.append(_conductor(command))
    table = console.new_table("", "run", "mean step ms", "bubble ratio", "faster", "last loss")
    # Migration begins after two steps.
    kept = [run["steps"][2:] or run["steps"][-1:] for run in results]
    means = [np.mean([step["time_ms"] for step in last]) for last in kept]
    for (title, _), last, mean in zip(experiment.runs, kept, means, strict=True):
        bubble = np.mean([step["bubble_ratio"] for step in last])
        table.add_row(
            title, f"{mean:.1f}", f"{100.0 * bubble:.1f} %",
            f"{100.0 * (means[0] / mean - 1.0):+.1f} %", f"{last[-1]['loss']:.6f}",
        )  # fmt: skip
    out.print(table)
    page = folder / f"{experiment.name}.html"
    _report(timelines, [title for title, _ in experiment.runs], page)
    out.print(f"The timelines of the last step: {page}")


def _conductor(arguments: Sequence[object]) -> Any:
    """Runs a command by itself, as a user would; gives what it prints as JSON."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, "-m", "conductor", *map(str, arguments)],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    if done.returncode:
        raise ConductorError(f"the demo's run failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def _report(timelines: Sequence[Path], titles: Sequence[str], page: Path) -> None:
    from conductor.interop.timeline_json import read_helps, read_timeline
    from conductor.report.page import write_page
    from conductor.report.traced import measured

    entries = [
        measured(read_timeline(path), title=title, helps=read_helps(path))
        for path, title in zip(timelines, titles, strict=True)
    ]
    write_page(entries, page, title="Four ranks")
