"""The subcommands are one tool: the same names mean the same, and everything is documented."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections import defaultdict

import pytest
import typer

from conductor.cli import completion
from conductor.cli.app import EXIT_CODES, app, main
from conductor.evaluation.scenario import scenario_names
from conductor.migration.blocks.hardware import HARDWARE
from conductor.planning.plan import LEARNED
from conductor.problem.presets import preset_names
from conductor.schedules.registry import SCHEDULES

COMMANDS = typer.main.get_command(app).commands

OWN_WORDS = {
    "--dp-rank": "of a report, or of a profile",
    "--draw": "a plan, or a traced step",
    "--draws": "evaluate compares on them, so it needs two",
    "--episodes": "train has a default for each configuration",
    "--execution": "run can only see what has arrived",
    "--migrate": "shown, or done",
    "--microbatches": "each has another default",
    "--movable": "of a simulated, or of a real forward",
    "--out": "a schedule, a spec, a model or a report",
    "--ranks": "started, measured or planned for",
    "--resume": "a training, or a run",
    "--save": "a training, or a run",
    "--schedule": "only this one, also this one, or this one's file",
    "--spec": "run plans for it, and runs at the machine's own speed",
    "--steps": "shown, trained or measured",
    "--trace": "a simulated, measured or traced step",
}
"""Options that each command explains by itself, and why; their names still mean one thing."""

NO_TABLE = {"report": "writes a file", "demo": "shows what the others do"}
"""Commands without --json."""


def options():
    """(command, option) of every option but --help."""
    return [
        (name, parameter)
        for name, command in COMMANDS.items()
        for parameter in command.params
        if parameter.param_type_name == "option" and parameter.name != "help"
    ]


def test_an_option_of_several_commands_is_defined_once():
    said = defaultdict(set)
    for _, option in options():
        said[option.opts[0]].add((option.metavar, option.help, option.is_flag, option.multiple))
    several = {name for name, ways in said.items() if len(ways) > 1}
    assert several - set(OWN_WORDS) == set()


def test_values_of_one_option_are_named_alike():
    metavars = defaultdict(set)
    for _, option in options():
        metavars[option.opts[0]].add(option.metavar)
    differ = {name: ways for name, ways in metavars.items() if len(ways) > 1}
    assert set(differ) <= {"--out", "--schedule", "--save", "--resume", "--ranks"}
    assert differ["--save"] == differ["--resume"] == {"FILE.pt", "FOLDER"}


def test_every_option_and_argument_is_documented():
    for name, command in COMMANDS.items():
        assert command.help, name
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"
            assert parameter.help[0].isupper() or parameter.help[0] in "{a", parameter.help
            assert parameter.help.endswith("."), f"{name} {parameter.name}: {parameter.help}"


def test_numbers_and_files_show_what_they_take():
    for name, option in options():
        # Choices, whose defaults are texts, show themselves.
        if not option.is_flag and not isinstance(option.default, str):
            assert option.metavar, f"{name} {option.opts[0]}"


def test_every_command_has_json_where_it_prints_a_table():
    without = {
        name
        for name, command in COMMANDS.items()
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == set(NO_TABLE)


def test_summaries_fit_into_the_list_of_commands(capsys):
    assert main(["--help"]) == 0
    assert "..." not in capsys.readouterr().out.partition("Commands:")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_name_options_that_there_are(name, capsys):
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    examples = [line.strip() for line in text.partition("Examples:")[2].splitlines()]
    examples = [line for line in examples if line]
    assert any(f"conductor {name}" in line for line in examples)
    for line in examples:
        words = shlex.split(line)
        words = words[words.index("conductor") + 1 :]
        own = words[: words.index("--")] if "--" in words else words
        known = {text for parameter in COMMANDS[own[0]].params for text in parameter.opts}
        assert {word for word in own if word.startswith("--")} <= known, line


def test_exit_codes_are_said_once(capsys):
    main(["--help"])
    assert " ".join(capsys.readouterr().out.split()).endswith(EXIT_CODES)
    for command in COMMANDS.values():
        assert "exit code" not in command.help.lower()


def test_completion_knows_every_name():
    assert set(completion.PRESETS) == set(preset_names())
    assert set(completion.SCHEDULES) == {*SCHEDULES, LEARNED}
    assert set(completion.SCENARIOS) == set(scenario_names())
    assert set(completion.HARDWARE) == set(HARDWARE)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("conductor si", ["simulate"]),
        ("conductor plan --preset gpt-l", ["gpt-like"]),
        ("conductor plan --schedule zb-1", ["zb-1p"]),
        ("conductor plan --schedule r", ["rl"]),
        ("conductor schedules dual", ["dualpipe-v"]),
        ("conductor evaluate --scenario slow", ["slow-rank"]),
        ("conductor migrate --hardware h200-n", ["h200-nvlink"]),
        ("conductor run --emulate pap", ["paper"]),
        ("conductor run --execution ready", ["ready-first"]),
    ],
)
def test_a_shell_completes(typed, offered):
    code = (
        "import atexit, sys; from conductor.cli.app import main;"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); sys.exit(main())"
    )
    environment = {
        **os.environ, "_CONDUCTOR_COMPLETE": "complete_bash", "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == offered
    assert not {"numpy", "numba", "torch"} & set(done.stderr.split())


def test_the_script_of_the_completion_is_shown_and_installed(tmp_path):
    # Otherwise Typer asks which shell has started the tests: make's has no completion.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    environment = {**os.environ, **named, "HOME": str(tmp_path)}
    code = "import sys; from conductor.cli.app import main; sys.exit(main())"

    def conductor(*arguments):
        return subprocess.run(
            [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True,
            check=True,
        ).stdout  # fmt: skip

    assert "_CONDUCTOR_COMPLETE=complete_bash" in conductor("--show-completion", "bash")
    conductor("--install-completion", "bash")
    assert "conductor" in (tmp_path / ".bashrc").read_text()
