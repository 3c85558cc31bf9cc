"""`conductor demo`, end to end with little training."""

import pytest

from conductor.cli import demo_ranks
from conductor.cli.app import main
from conductor.errors import ConductorError

pytest.importorskip("torch")


def test_the_demo_plans_trains_compares_and_draws(capsys):
    assert main(["demo", "--episodes", "0", "--threads", "1", "--steps", "0"]) == 0
    out = capsys.readouterr().out
    plan, training, drawings = out.split("\n\n")
    # The papers' two bubble rates of the same profile.
    assert "gpt-28.3b-p32-m128" in plan
    (zb_2p,) = (line.split() for line in plan.splitlines() if line.startswith("zb-2p"))
    assert zb_2p[4:8] == ["8.47", "%", "0.29", "%"]
    for name in ("1f1b", "zb-1p", "zb-v", "ready-first", "lock-step zbpp", "policy"):
        assert f"\n{name} " in training
    assert drawings.count("rank 0 |") == 2


@pytest.mark.slow
def test_the_runs_on_real_ranks_are_compared_and_drawn(capsys, tmp_path):
    demo_ranks.run_experiments(tmp_path, 2)
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.endswith(tuple("0123456789"))]
    assert len(rows) == 5
    # The same training, whatever the order and whatever moves.
    assert len({row[-1] for row in rows[:3]}) == len({row[-1] for row in rows[3:]}) == 1
    assert rows[0][-3:-1] == ["+0.0", "%"]
    for experiment in demo_ranks.EXPERIMENTS:
        page = (tmp_path / f"{experiment.name}.html").read_text()
        assert all(title in page for title, _ in experiment.runs)


def test_a_run_that_fails_says_why():
    with pytest.raises(ConductorError, match="run failed: conductor: give one of --emulate"):
        demo_ranks._conductor(("run", "--emulate", "gpt-like", "--spec", "x.toml"))
