"""`conductor schedules`."""

from __future__ import annotations

from conductor.cli.options import JsonOption

EXAMPLES = ("conductor schedules",)


def schedules(json: JsonOption = False) -> None:
    """The schedules that `plan` knows: placement, memory, formula and source."""
    from conductor.cli import console
    from conductor.schedules.registry import SCHEDULES

    fields = ("name", "placement", "stages_per_rank", "summary", "memory", "formula", "source")
    rows = [{field: getattr(info, field) for field in fields} for info in SCHEDULES.values()]
    if json:
        console.print_json({"schedules": rows})
        return
    table = console.new_table(
        "Schedules of p ranks and m micro-batches (F, I, W: times; memory in micro-batches)",
        "name", "placement", "stages a rank", "idle time", "memory", "what it is", "source",
        left=7,
    )  # fmt: skip
    for row in rows:
        table.add_row(
            *(str(row[field]) or "-" for field in ("name", "placement", "stages_per_rank",
              "formula", "memory", "summary", "source"))
        )  # fmt: skip
    console.console().print(table)
