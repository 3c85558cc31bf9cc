"""What `conductor run --migrate` says at the end: what moved, what it cost, and what else would help."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conductor.migration.model import SimpleModel
    from conductor.problem.spec import PipelineSpec
    from conductor.runtime.train import StepRecord, Training

WARM_UP = 1


def migration_model(
    spec: PipelineSpec, movable: float | None, parts: int, *, width: int, emulated: bool
) -> SimpleModel:
    """What moves. On emulated devices a message takes half a percent of a forward, and all that can move of
    one 3 % there; else the first steps tell, and what can move without weights is core attention.
    """
    from conductor.migration.model import SimpleModel
    from conductor.runtime.gpt import GPTConfig

    if movable is None:
        length = GPTConfig().sequence
        movable = 0.6 if emulated else length / (6.0 * width + length)
    forward = float(spec.per_stage("forward_ms").mean())
    return SimpleModel(
        movable=movable, latency_ms=0.005 * forward, part_ms=0.03 * forward / parts, parts=parts,
        source="in proportion to the spec's forward, as the defaults are to one of 10 ms",
    )  # fmt: skip


def summary(records: Sequence[StepRecord], training: Training) -> dict[str, Any]:
    """Medians of the steps with and without migration, what moved, what was decided, and advice."""
    import numpy as np

    assert training.migration is not None
    kept = [r for r in records[WARM_UP:] if r.migration is not None]
    on = [r for r in kept if r.migration and r.migration.is_on]
    off = [r for r in kept if r.migration and not r.migration.is_on]
    moved = [asdict(r.migration) for r in on if r.migration]
    names = [name for name in (moved[0] if moved else {}) if name != "is_on"]
    return {
        "steps_on": len(on),
        "steps_off": len(off),
        "median_on_ms": float(np.median([r.time_ms for r in on])) if on else None,
        "median_off_ms": float(np.median([r.time_ms for r in off])) if off else None,
        "simulated_on_ms": float(np.median([m["predicted_ms"] for m in moved])) if on else None,
        "per_step": {name: float(np.mean([entry[name] for entry in moved])) for name in names},
        "peak_bytes": max((m["peak_bytes"] for m in moved), default=0),
        "planned_bytes": max((m["planned_bytes"] for m in moved), default=0),
        "decisions": training.migration.decisions,
        "advice": advice(training),
    }


def advice(training: Training) -> str | None:
    """What another split of the layers would bring, what moving them costs, and when that pays back."""
    from contextlib import suppress

    from conductor.errors import DoesNotFitError
    from conductor.planning.plan import plan
    from conductor.runtime.layers import level_layers, with_layers
    from conductor.simulator.simulate import timeline

    control = training.migration
    assert control is not None
    spec, layers = control.spec, training.layers
    if spec.num_stages != spec.num_ranks or (other := level_layers(spec, layers)) == layers:
        return None
    with suppress(DoesNotFitError):
        moved = with_layers(spec, layers, other)
        best = plan(moved, schedules=["zb-1p", "zb", "1f1b"]).best
        now_ms = control.expected_ms or timeline(spec, training.plan).makespan_ms
        gain_ms = now_ms - best.timeline.makespan_ms
        count = sum(abs(a - b) for a, b in zip(layers, other, strict=True)) // 2
        size = count * training.layer_bytes
        cost_ms = training.ms_per_byte * size
        split = "/".join(map(str, other))
        if gain_ms <= 0.01 * now_ms:
            return (
                f"another split of the layers ({split}) would take {best.timeline.makespan_ms:.1f} ms"
                f" a step: no gain over {now_ms:.1f} ms"
            )
        layers_ = "1 layer" if count == 1 else f"{count} layers"
        return (
            f"a new partition ({split} layers, {best.name}) would take {best.timeline.makespan_ms:.1f} ms"
            f" a step instead of {now_ms:.1f} ms; moving {layers_} is {size / 1e6:.1f} MB with the"
            f" optimizer's state, about {cost_ms:.0f} ms, and pays back after"
            f" {max(1, round(cost_ms / gain_ms))} steps: --adapt does it"
        )
    return None


def print_summary(found: dict[str, Any]) -> None:
    """The same as a table and sentences."""
    from conductor.cli import console

    out = console.console()
    for decision in found["decisions"]:
        out.print(decision, soft_wrap=True)
    if found["steps_on"]:
        each = found["per_step"]
        table = console.new_table(
            "Migration, a step", "steps on", "off", "on ms", "off ms", "simulated ms", "helps", "refused",
            "late", "moved", "KB", "waited ms", "KB at a lender", "planned", left=0,
        )  # fmt: skip
        table.add_row(
            str(found["steps_on"]), str(found["steps_off"]), _ms(found["median_on_ms"]),
            _ms(found["median_off_ms"]), _ms(found["simulated_on_ms"]), f"{each['helps']:.1f}",
            f"{each['refused']:.1f}", f"{each['late']:.1f}", f"{100.0 * each['moved_share']:.1f} %",
            f"{each['bytes'] / 1e3:.1f}", f"{each['waited_ms']:.1f}",
            f"{found['peak_bytes'] / 1e3:.1f}", f"{found['planned_bytes'] / 1e3:.1f}",
        )  # fmt: skip
        out.print(table)
    else:
        out.print("Nothing moved: migration does not pay here.")
    if found["advice"]:
        out.print(found["advice"], soft_wrap=True)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
