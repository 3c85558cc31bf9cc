"""What the README says is true."""

import re
import shlex
from pathlib import Path

import pytest

from conductor.cli.app import main
from conductor.problem.spec_file import load_spec

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


def test_the_spec_file_loads(tmp_path):
    (text,) = re.findall(r"```toml\n(.*?)```", README, re.S)
    (tmp_path / "mine.toml").write_text(text)
    assert load_spec(tmp_path / "mine.toml").num_ranks == 4


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
