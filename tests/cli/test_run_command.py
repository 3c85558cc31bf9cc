"""`conductor run`: what is wrong is said before any rank starts."""

import pytest

from conductor.cli.app import main
from conductor.runtime import launch


@pytest.fixture(autouse=True)
def started(monkeypatch):
    """The numbers of ranks that would have been started."""
    counts = []

    def start(arguments, ranks):
        counts.append(ranks)
        return 0

    monkeypatch.setattr(launch, "launch", start)
    return counts


def test_an_unknown_schedule_is_said_once(capsys, started):
    assert main(["run", "--schedule", "no-such"]) == 2
    assert capsys.readouterr().err.count("no schedule is named 'no-such'") == 1
    assert started == []


def test_a_file_says_how_many_ranks_and_microbatches_there_are(tmp_path, started):
    path = tmp_path / "three.csv"
    path.write_text("0F0,0B0\n1F0,1B0\n2F0,2B0\n")
    assert main(["run", "--schedule", str(path)]) == 0
    assert started == [3]


def test_a_file_with_other_microbatches_than_the_spec_is_refused(tmp_path, capsys, started):
    path = tmp_path / "short.csv"
    path.write_text("0F0,0B0\n1F0,1B0\n2F0,2B0\n3F0,3B0\n")
    assert main(["run", "--emulate", "gpt-like", "--schedule", str(path)]) == 2
    assert "1 micro-batches, but the spec has 8" in capsys.readouterr().err
    assert started == []
