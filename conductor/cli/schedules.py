"""`conductor schedules`."""

from __future__ import annotations

from typing import Annotated

import typer

from conductor.cli import completion
from conductor.cli.options import JsonOption

EXAMPLES = ("conductor schedules", "conductor schedules zb-v")
DRAWN_RANKS, DRAWN_MICROBATCHES = 3, 6


def schedules(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Only this one, with its drawing.",
            autocompletion=completion.schedules,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """The schedules by name: placement, memory, idle time, source."""
    from conductor.cli import console
    from conductor.planning.plan import LEARNED, LEARNED_ROW, plan
    from conductor.problem.spec import PipelineSpec
    from conductor.schedules.registry import SCHEDULES, build

    fields = ("name", "placement", "stages_per_rank", "summary", "memory", "formula", "source")
    rows = [{field: getattr(info, field) for field in fields} for info in SCHEDULES.values()]
    rows.append(LEARNED_ROW)
    out = console.console()
    if name is not None:
        drawn = PipelineSpec(
            num_ranks=DRAWN_RANKS, num_microbatches=DRAWN_MICROBATCHES,
            forward_ms=1, backward_input_ms=1, backward_weight_ms=1,
        )  # fmt: skip
        learned = name == LEARNED
        # Refuses an unknown name.
        schedule = plan(drawn, schedules=[name]).best.schedule if learned else build(name, drawn)
        rows = [row for row in rows if row["name"] == name]
    if json:
        console.print_json({"schedules": rows})
    elif name is not None:
        from conductor.ir.draw import draw

        for field, value in rows[0].items():
            out.print(f"{field.replace('_', ' '):15} {value or '-'}", soft_wrap=True)
        out.print(console.coloured(draw(schedule)), soft_wrap=True)
    else:
        shown = ("name", "placement", "stages_per_rank", "memory", "formula", "source")
        table = console.new_table(
            "p ranks, m micro-batches, v stages a rank; memory in micro-batches of a rank",
            "name", "placement", "stages", "memory", "idle time of a rank", "source", left=6,
        )  # fmt: skip
        for row in rows:
            table.add_row(*(str(row[field]) or "-" for field in shown))
        out.print(table)
