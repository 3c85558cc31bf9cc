"""What docs/report.md says can be done is done."""

import re
import shlex
from pathlib import Path

import pytest

from conductor.cli.app import main

PAGE = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")


def test_the_commands_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ conductor (.*)$", PAGE, re.M)
    assert len(commands) == 6
    for command in commands:
        assert main(shlex.split(command)) == 0, capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 6


def test_the_python_lines_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(code, {})
    assert "Three schedules" in (tmp_path / "report.html").read_text()
