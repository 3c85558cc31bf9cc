"""What the README says is true."""

import re
import shlex
from pathlib import Path

import pytest

from conductor.cli.app import app, main
from conductor.evaluation.scenario_file import load_scenario_file
from conductor.planning.plan import LEARNED
from conductor.problem.spec_file import load_spec
from conductor.schedules.registry import SCHEDULES

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_first_lines_are_the_two_commands():
    assert [line.split("#")[0].strip() for line in README.splitlines()[:2]] == [
        "make demo",
        "make test",
    ]


def test_the_python_lines_run(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    exec(code, {})
    assert len([line for line in code.splitlines() if line]) == 5
    assert capsys.readouterr().out.startswith("zb-v")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the README's spec and scenario, to work in."""
    monkeypatch.chdir(tmp_path)
    texts = re.findall(r"```toml\n(.*?)```", README, re.S)
    for name, text in zip(("mine.toml", "day.toml"), texts, strict=True):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_spec_file_and_the_scenario_load(folder):
    assert load_spec(folder / "mine.toml").num_ranks == 4
    scenario = load_scenario_file(folder / "day.toml")
    assert scenario.actual_spec.transfer_ms == (0.4, 5.0, 0.4)


def test_the_table_has_every_command():
    commands = {command.callback.__name__ for command in app.registered_commands}
    assert set(re.findall(r"^\| `conductor ([a-z]+)`", README, re.M)) == commands


def test_the_plan_and_the_simulation_give_what_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shown = re.findall(r"```console\n\$ (.*?[^\\])\n(.*?)```", README, re.S)[:2]
    for command, output in shown:
        assert main(shlex.split(command.replace("\\\n", " "))[1:]) == 0
        captured = capsys.readouterr()
        said = [line.split() for line in (captured.out + captured.err).splitlines()]
        for line in output.splitlines():
            if "planned in" in line or line.startswith(("zb", "1f1b", "v-half")):
                # All but the planning time, which differs.
                assert any(words[:-1] == line.split()[:-1] for words in said), line
            elif line:
                assert line.split() in said, line


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)]+)\)", README))
def test_links_lead_somewhere(path):
    assert (Path(__file__).parents[1] / path).exists()


def test_the_page_of_schedules_has_every_schedule():
    page = (Path(__file__).parents[1] / "docs/schedules.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.M)) == {*SCHEDULES, LEARNED}
