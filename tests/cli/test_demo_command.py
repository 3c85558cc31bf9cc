"""`conductor demo`, end to end with little training."""

import pytest

from conductor.cli.app import main

pytest.importorskip("torch")


def test_the_demo_plans_trains_compares_and_draws(capsys):
    assert main(["demo", "--episodes", "0", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    plan, training, drawings = out.split("\n\n")
    # The papers' two bubble rates of the same profile.
    assert "gpt-28.3b-p32-m128" in plan
    (zb_2p,) = (line.split() for line in plan.splitlines() if line.startswith("zb-2p"))
    assert zb_2p[4:8] == ["8.47", "%", "0.29", "%"]
    for name in ("1f1b", "zb-1p", "zb-v", "ready-first", "lock-step zbpp", "policy"):
        assert f"\n{name} " in training
    assert drawings.count("rank 0 |") == 2
