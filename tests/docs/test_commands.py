"""Every command of the README and of the documentation runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from conductor.cli.app import app, main

from .blocks import Command, File, blocks, mentioned, python_blocks

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
COMMANDS = typer.main.get_command(app).commands

NOT_RUN = {
    r"make": "sets up an environment; CI runs `make test-all`, `check` and `docs`",
    r"(pip|python -m venv|\.) ": "sets up an environment, as CI does",
    r"pytest": "is a test",
    r"conductor profile train.py": "is the reader's program; tests/runtime/test_script_profile.py has one",
    r"conductor evaluate .*--scenario paper-0 --scenario paper-10": "takes a quarter of an hour",
}
"""Commands that are not run, and why. Their options are checked."""

SLOW = (
    r"torchrun|conductor (run|train|demo)|conductor profile (?!.*--megatron-log)|conductor evaluate"
)
"""What takes more than a few seconds, beside what a page marks."""

SHORTER = (
    (r"--budget-ms \d+", "--budget-ms 200"),
    (r"(conductor run(?!.*--steps).*)", r"\1 --steps 2"),
    (r"(conductor evaluate(?!.*--draws).*)", r"\1 --draws 20"),
    (r"--draws \d+", "--draws 20"),
    (r"--search-ms \d+", "--search-ms 200"),
    (r"--episodes \d+", "--episodes 20"),
)
"""What is changed in a command when it runs here: less time for the same thing."""

GIVEN = {"job.parquet": "straggler-traces/trace-AR.parquet"}
"""Files that pages speak of as the reader's own."""


def _is_slow(command):
    return command.marker == "slow" or re.match(SLOW, str(command)) is not None


def _has_slow(page):
    steps = blocks(PAGES[page].read_text("utf-8"))
    return any(isinstance(step, Command) and _is_slow(step) for step in steps)


@pytest.mark.parametrize("page", PAGES)
def test_the_quick_commands_run(page, tmp_path, monkeypatch, capfd, request):
    _run(page, tmp_path, monkeypatch, capfd, request, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if _has_slow(page)])
def test_all_commands_run(page, tmp_path, monkeypatch, capfd, request):
    _run(page, tmp_path, monkeypatch, capfd, request, slow=True)


def _run(page, folder, monkeypatch, capfd, request, *, slow):
    """Runs a page's commands in a folder; what needs a file of one that is left out is left out too."""
    monkeypatch.chdir(folder)
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "docs").mkdir()
    (folder / "docs" / "pictures").mkdir()
    missing: set[str] = set()
    for step in blocks(PAGES[page].read_text("utf-8")):
        if isinstance(step, File):
            (folder / step.name).write_text(step.text)
            continue
        for name in set(GIVEN) & set(step.words):
            if not (folder / name).exists():
                data = request.getfixturevalue("shared_data")
                (folder / name).symlink_to(data / GIVEN[name])
        left_out = (not slow and _is_slow(step)) or _reason(step)
        if left_out or missing & set(step.words):
            missing |= {
                word
                for word in step.words
                if re.search(r"\.\w+$", word) and not Path(word).exists()
            }
            continue
        code = _call(_shorter(step))
        printed = capfd.readouterr()
        where = f"{page}, line {step.line}: {step}\n{printed.out}{printed.err}"
        assert code == step.exit_code, where
        said = {" ".join(line.split()) for line in (printed.out + printed.err).splitlines()}
        if page != "README.md":  # where times of planning differ: test_readme.py
            assert {" ".join(line.split()) for line in step.output} <= said, where


def _reason(command):
    """Why a command is not run; empty if it is."""
    if command.marker.startswith("no, "):
        return command.marker.removeprefix("no, ")
    return next((why for what, why in NOT_RUN.items() if re.match(what, str(command))), "")


def _shorter(command):
    text = str(command)
    for what, other in SHORTER:
        text = re.sub(what, other, text)
    return shlex.split(text)


def _call(words):
    """Runs a command, in this process if it is Conductor's; its exit code."""
    if words[0] == "conductor":
        return main(words[1:])
    program = {"python": sys.executable, "torchrun": shutil.which("torchrun", path=_PATH)}[words[0]]
    return subprocess.run(
        [program, *words[1:]],
        env={**os.environ, "PATH": _PATH, "PYTHONPATH": str(ROOT)},
        check=False,
    ).returncode


_PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))


@pytest.mark.parametrize("page", PAGES)
def test_options_of_commands_within_sentences_exist(page):
    text = PAGES[page].read_text("utf-8")
    commands = [list(words) for words in mentioned(text)]
    commands += [
        list(step.words) for step in blocks(text) if isinstance(step, Command) and _reason(step)
    ]
    for words in commands:
        if words[0] == "conductor" and len(words) > 1 and not words[1].startswith("-"):
            assert words[1] in COMMANDS, words
            wrong = _parse_error(words[1:])
            assert not wrong, f"{page}: {' '.join(words)}: {wrong}"


def _parse_error(words):
    """What is wrong with a command's options; placeholders stand for values."""
    words = ["0.1" if word == "X" else "1" if word == "N" else word for word in words]
    try:
        COMMANDS[words[0]].make_context(words[0], words[1:])
    except Exception as error:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        # A sentence may name an option, or leave out what is not its subject.
        return "" if re.match("Missing |.* requires an argument", message) else message
    return ""


@pytest.mark.parametrize(
    "page", [page for page in PAGES if python_blocks(PAGES[page].read_text("utf-8"))]
)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for code in python_blocks(PAGES[page].read_text("utf-8")):
        exec(compile(code, page, "exec"), {})
