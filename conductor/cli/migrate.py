"""`conductor migrate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conductor.cli import completion
from conductor.cli.options import JsonOption, PresetOption, SpecOption, UsageError, chosen_spec
from conductor.cli.report import check_name, write

if TYPE_CHECKING:
    from conductor.migration.blocks.advice import Advice
    from conductor.migration.blocks.plan import BlockPlan
    from conductor.migration.plan import MigrationPlan
    from conductor.problem.spec import PipelineSpec

EXAMPLES = (
    "conductor migrate --preset paper",
    "conductor migrate --preset gpt-28.3b-p32-m96 --hardware h100-nvlink --ranks-per-node 2"
    " --model-shape hidden=6144,heads=48,sequence=1024,layers=62",
    "conductor migrate --preset gpt-28.3b-p32-m96 --hardware h100-nvlink --link-gb-per-s 16"
    " --model-shape hidden=6144,heads=48,sequence=1024,layers=62 --json",
)


def migrate(
    preset: PresetOption = None,
    spec: SpecOption = None,
    model_shape: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=N,...",
            help="Of the model: hidden, heads, sequence, layers; also kv_heads, mlp_width, microbatch, matrices"
            " (3 with a gate), itemsize, parts. Without it the simple model is used: 60 % of every F and"
            " I can move, 0.05 ms a message, 0.01 ms a 32nd.",
        ),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=completion.hardware,
            help="a100, h100 or h200, with -nvlink, -pcie or -infiniband.",
        ),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(metavar="RANKS;...", help="Ranks of each node, as in '0,1;2,3'."),
    ] = None,
    ranks_per_node: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Consecutive ranks to a node (8).")
    ] = None,
    shared_port: Annotated[
        bool, typer.Option("--shared-port", help="Ranks of a node share one port to other nodes.")
    ] = False,
    link_gb_per_s: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Bandwidth of all links, each way, instead of the preset's."
        ),
    ] = None,
    lender_gb: Annotated[
        float, typer.Option(metavar="X", min=0.0, help="Weights of others that a rank may hold.")
    ] = 4.0,
    microbatches: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Instead of the spec's.")
    ] = None,
    keep_times: Annotated[
        bool, typer.Option("--keep-times", help="The spec's times as they are, on any hardware.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Show the steps, with and without moving work, as `conductor report` does.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Whether moving work between ranks pays.

    What moves, how much it gives, and where it does not pay, why.
    """
    if report is not None:
        check_name(report)
    problem = chosen_spec(preset, spec)
    if microbatches is not None:
        problem = problem.with_(num_microbatches=microbatches)
    if model_shape is None:
        if hardware or topology or ranks_per_node or link_gb_per_s or shared_port or keep_times:
            raise UsageError("the hardware's options need --model-shape")
        _simple(problem, report, json=json)
        return
    if topology is not None and ranks_per_node is not None:
        raise UsageError("give one of --topology and --ranks-per-node")
    from conductor.migration.blocks.advice import advise, on_hardware
    from conductor.migration.blocks.execution import BlockModel
    from conductor.migration.blocks.hardware import Topology, load_hardware
    from conductor.migration.blocks.shape import ModelShape

    machine = load_hardware(hardware or "h100-nvlink")
    if link_gb_per_s is not None:
        machine = machine.with_bandwidth(link_gb_per_s)
    count = problem.num_ranks
    model = BlockModel(
        shape=ModelShape.parse(model_shape),
        hardware=machine,
        topology=Topology.even(count, ranks_per_node or 8, shared_port=shared_port)
        if topology is None
        else Topology.parse(topology, count, shared_port=shared_port),
        weight_budget_bytes=lender_gb * 1e9,
    )
    if not keep_times:
        problem = on_hardware(problem, model)
    plans: list[BlockPlan] = []
    advice = advise(problem, model, on_plan=plans.append)
    if report is not None:
        _write(problem, plans, report)
    if json:
        from conductor.cli import console

        console.print_json(asdict(advice))
    else:
        _print(advice, f"{problem.name} on {machine.name}")


def _print(advice: Advice, title: str) -> None:
    from conductor.cli import console

    out = console.console()
    out.print(title, style="bold")
    out.print(advice.reason, soft_wrap=True)
    table = console.new_table(
        "One block, one lender, free link", "action", "piece", "link", "parts", "alone ms", "helped ms",
        "MB", "messages", "lender MB", left=3,
    )  # fmt: skip
    for entry in advice.pieces:
        table.add_row(
            entry.kind, entry.piece, entry.link,
            f"{entry.parts} of {entry.of_parts}" if entry.parts else "none",
            f"{entry.alone_ms:.3f}", f"{entry.helped_ms:.3f}", f"{entry.bytes / 1e6:.1f}",
            str(entry.messages), f"{entry.lender_bytes / 1e6:.0f}",
        )  # fmt: skip
    out.print(table)
    for entry in advice.pieces:
        if entry.why_not:
            out.print(f"{entry.kind} {entry.piece}: {entry.why_not}", soft_wrap=True)
    table = console.new_table(
        "The step", "schedule", "micro-batches", "without ms", "with ms", "gain", "helps",
        "messages GB", "weights GB", "lender GB", "moved",
    )  # fmt: skip
    for step in advice.steps:
        table.add_row(
            step.schedule, str(step.microbatches), f"{step.without_ms:.1f}", f"{step.with_ms:.1f}",
            f"{100 * step.gain:.1f} %", f"{step.helps:.0f}", f"{step.bytes / 1e9:.1f}",
            f"{step.weight_bytes / 1e9:.1f}", f"{step.lender_bytes / 1e9:.2f}",
            f"{100 * step.moved_share:.1f} %",
        )  # fmt: skip
    out.print(table)


def _write(problem: PipelineSpec, plans: Sequence[MigrationPlan | BlockPlan], out: Path) -> None:
    from conductor.report.simulated import planned, simulated

    entries = []
    for plan in plans:
        name = plan.schedule.name
        alone = simulated(problem, plan.schedule, title=name, execution=plan.execution)
        entries += [alone, planned(plan, title=f"{name}, migrating")]
    write(entries, out, name=problem.name)


def _simple(problem: PipelineSpec, report: Path | None, *, json: bool) -> None:
    """The simple model: the best plan found, without a model's shape."""
    from conductor.cli import console
    from conductor.migration.plan import plan_migration

    plan = plan_migration(problem)
    if report is not None:
        _write(problem, [plan], report)
    answer = _simple_json(plan)
    if json:
        console.print_json(answer)
        return
    gain = 100.0 * (1.0 - plan.plan_ms / answer["best_order_ms"])
    console.console().print(
        f"{problem.name}, simple model: {plan.plan_ms:.2f} ms with migration on {plan.schedule.name}"
        f" ({plan.execution} execution), {gain:.1f} % less than the best order's"
        f" {answer['best_order_ms']:.2f} ms; {answer['helps']} helps move"
        f" {100.0 * answer['moved_share']:.1f} % of the work",
        soft_wrap=True,
    )


def _simple_json(plan: MigrationPlan) -> dict[str, Any]:
    from conductor.migration.execution import run_draws

    step = run_draws(plan.prepared, plan.prepared.program.duration_ms)
    return {
        "schedule": plan.schedule.name,
        "execution": plan.execution,
        "makespan_ms": plan.plan_ms,
        "without_ms": plan.without_ms,
        "best_order_ms": plan.best_order_ms,
        "helps": int(step.helps[0]),
        "moved_share": float(step.moved_share[0]),
        "pays": plan.plan_ms < 0.99 * plan.best_order_ms,
    }
