"""`conductor run`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from conductor.cli import completion
from conductor.cli.options import (
    HeadsOption,
    JsonOption,
    LayersOption,
    NoiseOption,
    PolicyOption,
    SeedOption,
    UsageError,
    VariationOption,
    WidthOption,
    chosen_variation,
)
from conductor.cli.run_migration import migration_model, print_summary, summary
from conductor.errors import ConductorError

if TYPE_CHECKING:
    from conductor.ir.schedule import Schedule
    from conductor.migration.model import SimpleModel
    from conductor.problem.spec import PipelineSpec
    from conductor.rl.dispatcher import LearnedPolicy
    from conductor.runtime.controller import Proposal
    from conductor.runtime.pace import Straggler
    from conductor.runtime.train import StepRecord, Training
    from conductor.simulator.simulate import Execution
    from conductor.variation import Variation

EXAMPLES = (
    "conductor run --ranks 4",
    "conductor run --emulate gpt-like --schedule zb-1p --steps 10 --json",
    "conductor run --emulate gpt-like --noise 0.3 --execution ready-first --trace step.json",
    "torchrun --nproc-per-node 4 -m conductor run --schedule 1f1b",
)


def run(
    context: typer.Context,
    ranks: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Ranks to start on this machine (default: the spec's, or 4)."
        ),
    ] = None,
    emulate: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            autocompletion=completion.presets,
            help="A preset or a spec file: plan for it, and stretch every action to its times.",
        ),
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Plan for this spec, run at the machine's own speed."),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.csv",
            autocompletion=completion.schedules,
            help="A schedule by name, or a file in torch's compute_only CSV (default: the best).",
        ),
    ] = None,
    microbatches: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Micro-batches in a step (default: the spec's, or 8)."
        ),
    ] = None,
    mode: Annotated[
        Literal["static", "ready-first", "policy"],
        typer.Option(
            "--execution",
            "--mode",
            help="Strictly in order, or what is ready while the planned action is late, or as a learned"
            " policy decides.",
        ),
    ] = "static",
    policy: PolicyOption = None,
    patience: Annotated[
        float,
        typer.Option(
            metavar="X", min=0.0, help="Ready-first waits this share of a forward's time."
        ),
    ] = 0.2,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Optimizer steps.")] = 20,
    layers: LayersOption = 16,
    width: WidthOption = 64,
    noise: NoiseOption = None,
    variation: VariationOption = None,
    straggler: Annotated[
        list[str] | None,
        typer.Option(
            metavar="rank=R,factor=X[,from=S][,to=S]",
            help="An emulated rank is slower, in these steps. May be given again.",
        ),
    ] = None,
    adapt: Annotated[
        bool,
        typer.Option(
            "--adapt",
            help="Watch the measured times; change the plan (and, with one stage a rank, move layers)"
            " between steps when that pays.",
        ),
    ] = False,
    migrate: Annotated[
        bool,
        typer.Option(
            "--migrate",
            help="Ranks do parts of each other's actions (heads, columns of MLPs) while that pays.",
        ),
    ] = False,
    movable: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Share of a forward that can move, with --migrate (default: 0.6 on emulated devices, else"
            " that of core attention).",
        ),
    ] = None,
    lender_memory: Annotated[
        float | None,
        typer.Option(
            metavar="MB", min=0.0, help="Most that a rank may hold of others, with --migrate."
        ),
    ] = None,
    only_heads: Annotated[
        bool,
        typer.Option(
            "--only-heads",
            help="With --migrate no columns of MLPs move, so that losses are those without it, bit for bit.",
        ),
    ] = False,
    heads: HeadsOption = 4,
    seed: SeedOption = 0,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write the last step as a Chrome trace (Perfetto)."),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json", help="Write the last step's times, as `whatif` reads them."
        ),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a checkpoint at the end.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on from a checkpoint, exactly.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train a small GPT under a plan, on real ranks.

    Prints loss, time and bubble ratio of each step.
    """
    if emulate is not None and spec is not None:
        raise UsageError("give one of --emulate and --spec")
    if emulate is None and (noise or variation or straggler):
        raise UsageError(
            "--noise, --variation and --straggler vary emulated times: give --emulate too"
        )
    if policy is not None and mode != "policy":
        raise UsageError("--policy goes with --execution policy")
    if migrate and adapt:
        raise UsageError(
            "give one of --adapt and --migrate: a plan that moves work within the step stands on the stages"
            " as they are; --migrate says at its end when other layers would pay"
        )
    from conductor.interop.torch_csv import read_torch_csv

    learned = _policy(policy) if mode == "policy" else None
    model = chosen_variation(noise, variation)
    stragglers = [_straggler(text) for text in straggler or ()]
    if emulate is None and spec is None and schedule is not None and schedule.endswith(".csv"):
        order = read_torch_csv(schedule)
        ranks, microbatches = ranks or order.num_ranks, microbatches or order.num_microbatches
    profile = _profile(emulate or spec, ranks, microbatches)
    for slow in stragglers:
        if not 0 <= slow.rank < profile.num_ranks:
            raise UsageError(
                f"--straggler rank={slow.rank}: there are ranks 0 to {profile.num_ranks - 1}"
            )
    moves = None
    if migrate:
        moves = migration_model(profile, movable, heads, width=width, emulated=emulate is not None)
    from conductor.runtime.launch import (
        conductor_command,
        from_first_rank,
        is_rank,
        join_ranks,
        launch,
    )

    if not is_rank():
        if schedule is not None:
            _plan(profile, schedule)  # what is wrong with it is said once, before any rank starts
        raise typer.Exit(launch(conductor_command(context.obj), profile.num_ranks))
    try:
        rank, world = join_ranks()
        if world != profile.num_ranks:
            raise UsageError(f"the spec has {profile.num_ranks} ranks, but {world} were started")
        from conductor.interop.chrome_trace import write_chrome_trace
        from conductor.interop.timeline_json import write_timeline
        from conductor.runtime.gpt import GPTConfig
        from conductor.runtime.pace import Emulation
        from conductor.runtime.sums_text import ALPHABET
        from conductor.runtime.train import TrainSettings, train
        from conductor.variation import NoVariation

        pace = Emulation(
            spec=profile, variation=model or NoVariation(), stragglers=stragglers, seed=seed
        )
        quiet = json or rank != 0
        try:
            plan = from_first_rank(lambda: _filled(_plan(profile, schedule, moves, mode), layers))
        except ConductorError as error:
            if rank:  # the first rank says it
                os._exit(_exit_code(error))
            raise
        if learned is not None and emulate:
            mode, learned = _held(learned, profile, plan, pace.variation, quiet=quiet)
        settings = TrainSettings(
            config=GPTConfig(
                num_layers=layers, d_model=width, num_heads=heads, vocabulary=len(ALPHABET)
            ),
            num_steps=steps,
            seed=seed,
            mode=mode,
            patience=patience,
            policy=learned,
            pace=pace if emulate else None,
            replan=_replan if adapt else None,
            migrate=moves,
            slices=not only_heads,
            lender_bytes=None if lender_memory is None else int(1e6 * lender_memory),
            save=save,
            resume=resume,
        )
        trainings: list[Training] = []
        records, times = train(
            settings, plan, profile, lambda r: None if quiet else _print(r), trainings.append
        )
        if rank == 0:
            control = trainings[0].migration
            helps = None if control is None else control.helps
            if trace is not None:
                write_chrome_trace(times, trace, helps=helps)
            if timeline is not None:
                write_timeline(times, timeline, helps=helps)
            moved = summary(records, trainings[0]) if control else None
            _finish(records, plan, profile if emulate else None, moved, json=json)
    except ConductorError as error:
        print(f"conductor: {error}", file=sys.stderr, flush=True)
        # Threads that wait for other ranks must not hold this one up.
        os._exit(_exit_code(error))
    # Nor may they end it with an error, when Python takes down what they wait on.
    sys.stdout.flush()
    os._exit(0)


def _profile(
    source: str | Path | None, ranks: int | None, microbatches: int | None
) -> PipelineSpec:
    """The spec to plan for: a preset, a file, or equal ranks whose backward is twice the forward."""
    from conductor.problem.presets import load_preset, preset_names
    from conductor.problem.spec import PipelineSpec
    from conductor.problem.spec_file import load_spec

    if source is None:
        return PipelineSpec(
            num_ranks=ranks or 4, num_microbatches=microbatches or 8, name="equal ranks",
            forward_ms=1.0, backward_input_ms=1.0, backward_weight_ms=1.0,
        )  # fmt: skip
    name = str(source)
    profile = load_preset(name) if name in preset_names() else load_spec(name)
    if ranks not in (None, profile.num_ranks):
        raise UsageError(f"{name} has {profile.num_ranks} ranks, not {ranks}")
    return profile.with_(num_microbatches=microbatches or profile.num_microbatches)


def _straggler(text: str) -> Straggler:
    from conductor.runtime.pace import Straggler

    try:
        values = dict(part.split("=", 1) for part in text.split(","))
        made = Straggler(
            rank=int(values.pop("rank")),
            factor=float(values.pop("factor")),
            first=int(values.pop("from", 0)),
            last=int(values.pop("to")) if "to" in values else None,
        )
    except (ValueError, KeyError):
        values = {"": ""}
    if values:
        raise UsageError(f"a straggler looks like rank=2,factor=2,from=10,to=30, not {text!r}")
    return made


def _policy(file: Path | None) -> LearnedPolicy:
    from conductor.rl.dispatcher import LearnedPolicy
    from conductor.rl.shipped import policy_weights

    return LearnedPolicy(weights=policy_weights(file))


def _held(
    policy: LearnedPolicy, spec: PipelineSpec, plan: Schedule, variation: Variation, *, quiet: bool
) -> tuple[Execution | Literal["policy"], LearnedPolicy | None]:
    """How to execute the plan: the policy, held to it as far as pays on draws, or the rule that they prefer.

    Every rank finds the same.
    """
    from conductor.cli import console
    from conductor.rl.execution import decided

    way = decided(spec, plan, policy.weights, variation)
    if not quiet:
        console.note(f"what starts next is decided by: {way.name}")
    return way.rule or "policy", None if way.rule else replace(policy, stay=way.stay)


def _plan(
    spec: PipelineSpec, schedule: str | None, moves: SimpleModel | None = None, mode: str = "static"
) -> Schedule:
    from conductor.interop.torch_csv import read_torch_csv
    from conductor.ir.validate import validate
    from conductor.planning.plan import plan

    if schedule is not None and schedule.endswith(".csv"):
        order = read_torch_csv(schedule)
        validate(order, spec)
        return order
    if moves is not None and schedule is None:
        from conductor.migration.plan import plan_migration

        execution: Any = "static" if mode == "static" else "ready-first"
        return plan_migration(spec, model=moves, executions=(execution,)).schedule
    return plan(spec, schedules=schedule and [schedule]).best.schedule


def _exit_code(error: ConductorError) -> int:
    return 2 if isinstance(error, UsageError) else 1


def _filled(plan: Schedule, layers: int) -> Schedule:
    if layers < plan.num_stages:
        raise UsageError(
            f"{layers} layers do not fill the {plan.num_stages} stages of {plan.name}: give more --layers,"
            " or a --schedule with fewer stages"
        )
    return plan


def _replan(spec: PipelineSpec, layers: tuple[int, ...] | None) -> Proposal:
    """The best plan on the stages as they are placed, with the layers where they are or levelled."""
    from contextlib import suppress

    from conductor.errors import DoesNotFitError
    from conductor.planning.plan import plan
    from conductor.runtime.controller import Proposal
    from conductor.runtime.layers import near_level, with_layers
    from conductor.schedules.registry import POOL, SCHEDULES, adapt

    def keeps_stages(name: str) -> bool:
        with suppress(DoesNotFitError):
            return adapt(SCHEDULES[name], spec).stage_ranks == spec.stage_ranks
        return False

    names = [name for name in POOL if keeps_stages(name)]
    best = plan(spec, schedules=names).best
    found = best.timeline.makespan_ms, Proposal(plan=best.schedule, spec=spec, layers=layers)
    if layers is None:
        return found[1]
    for other in near_level(spec, layers):
        moved = with_layers(spec, layers, other)
        with suppress(DoesNotFitError):
            best = plan(moved, schedules=names).best
            order = best.schedule.named(f"{best.name} {'/'.join(map(str, other))}")
            proposal = Proposal(plan=order, spec=moved, layers=other)
            if best.timeline.makespan_ms < found[0]:
                found = best.timeline.makespan_ms, proposal
    return found[1]


def _print(record: StepRecord) -> None:
    print(
        f"step {record.step:4}  loss {record.loss:.4f}  {record.time_ms:9.2f} ms"
        f"  bubble ratio {100.0 * record.bubble_ratio:5.2f} %  {record.plan}",
        flush=True,
    )


def _finish(
    records: list[StepRecord],
    plan: Schedule,
    emulated: PipelineSpec | None,
    moved: dict[str, Any] | None,
    *,
    json: bool,
) -> None:
    from conductor.cli import console
    from conductor.runtime.train import median_ms
    from conductor.simulator.simulate import timeline

    median = median_ms(records)
    simulated = timeline(emulated, plan).makespan_ms if emulated is not None else None
    if json:
        console.print_json(
            {
                "steps": [
                    {k: v for k, v in asdict(record).items() if v is not None} for record in records
                ],
                "median_ms": median,
                "simulated_ms": simulated,
                **({} if moved is None else {"migration": moved}),
            }
        )
        return
    if moved is not None:
        print_summary(moved)
    line = f"median step {median:.2f} ms"
    if simulated is not None:
        line += f"; simulated {simulated:.2f} ms with the expected times ({median / simulated:.3f} of it)"
    print(line)
