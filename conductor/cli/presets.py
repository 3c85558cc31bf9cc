"""`conductor presets`."""

from __future__ import annotations

from conductor.cli.options import JsonOption

EXAMPLES = ("conductor presets",)


def presets(json: JsonOption = False) -> None:
    """The built-in profiles, with their times and sources."""
    from dataclasses import asdict

    from conductor.cli import console
    from conductor.problem.presets import load_preset, preset_names

    specs = [load_preset(name) for name in preset_names()]
    if json:
        console.print_json({"presets": [asdict(spec) for spec in specs]})
        return
    table = console.new_table(
        "Presets (milliseconds a stage and micro-batch)",
        "name", "ranks", "stages", "micro-batches", "F", "I", "W", "transfer", "limit", "source",
    )  # fmt: skip
    sources = list(dict.fromkeys(spec.source for spec in specs))
    for spec in specs:
        times = (spec.forward_ms, spec.backward_input_ms, spec.backward_weight_ms, spec.transfer_ms)
        table.add_row(
            spec.name, str(spec.num_ranks), str(spec.num_stages), str(spec.num_microbatches),
            *(_range(value) for value in times),
            "-" if spec.memory_limit is None else _range(spec.memory_limit),
            f"[{sources.index(spec.source) + 1}]",
        )  # fmt: skip
    out = console.console()
    out.print(table)
    for number, source in enumerate(sources, 1):
        out.print(f"[{number}] {source}")


def _range(value: float | tuple[float, ...]) -> str:
    """One number, or the least and the greatest."""
    if isinstance(value, float):
        return f"{value:g}"
    return f"{min(value):g} to {max(value):g}"
