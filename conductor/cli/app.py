"""The `conductor` command. Each subcommand has its own file and loads what it needs in it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from conductor.cli import (
    demo,
    evaluate,
    fit,
    migrate,
    partition,
    plan,
    presets,
    profile,
    report,
    run,
    schedules,
    simulate,
    train,
    whatif,
)
from conductor.errors import ConductorError

_EXTRAS = {
    "torch": "rl",
    "gymnasium": "rl",
    "ortools": "optimal",
    "pyarrow": "traces",
    "matplotlib": "report",
}
"""What `pip install conductor-pipeline` leaves out, and the extra that brings it."""

EXIT_CODES = (
    "Exit codes: 0 done; 1 a rank of `conductor run` failed; 2 the input is at fault, in one sentence on"
    " standard error; 130 stopped by Ctrl-C."
)

app = typer.Typer(
    help="Plan, simulate and train pipeline-parallel schedules.",
    epilog="Start with: conductor plan --preset gpt-like\n\n" + EXIT_CODES,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command, examples in (
    (plan.plan, plan.EXAMPLES),
    (partition.partition, partition.EXAMPLES),
    (simulate.simulate, simulate.EXAMPLES),
    (migrate.migrate, migrate.EXAMPLES),
    (train.train, train.EXAMPLES),
    (evaluate.evaluate, evaluate.EXAMPLES),
    (report.report, report.EXAMPLES),
    (run.run, run.EXAMPLES),
    (profile.profile, profile.EXAMPLES),
    (whatif.whatif, whatif.EXAMPLES),
    (fit.fit, fit.EXAMPLES),
    (schedules.schedules, schedules.EXAMPLES),
    (presets.presets, presets.EXAMPLES),
    (demo.demo, demo.EXAMPLES),
):
    # A line with only \b keeps the lines of the paragraph behind it apart.
    app.command(epilog="\n".join(("\b", "Examples:", *(f"  {line}" for line in examples))))(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: without the program's name; None is `sys.argv`.

    Returns:
        An exit code; `EXIT_CODES` says what each means.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        result = typer.main.get_command(app).main(
            args=list(arguments) or ["--help"],
            prog_name="conductor",
            standalone_mode=False,
            obj=list(arguments),  # for commands that start themselves on several ranks
        )
    except ConductorError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        extra = f"pip install 'conductor-pipeline[{_EXTRAS[error.name]}]'"
        return _refuse(f"this command needs {error.name}: {extra}")
    except Exception as error:
        # The usage errors' class depends on typer's version; what they offer does not.
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            raise
        return _refuse(format_message())
    except (KeyboardInterrupt, typer.Abort):
        print("conductor: stopped", file=sys.stderr)
        return 130
    return result if isinstance(result, int) else 0


def _refuse(message: str) -> int:
    print(f"conductor: {message}", file=sys.stderr)
    return 2
