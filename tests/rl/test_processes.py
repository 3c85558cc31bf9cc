"""Two processes that train one policy, against one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from conductor.rl.checkpoint import load_checkpoint
from conductor.rl.ppo import train
from conductor.rl.processes import Processes, launched
from conductor.rl.source import Source
from conductor.rl.training import Training
from tests.rl.test_training import same_weights
from tests.rl.train_together import MAKES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trained_by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the checkpoints of both processes."""
    folder = tmp_path_factory.mktemp("together")
    subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "-m", "tests.rl.train_together", str(folder),
        ],
        cwd=ROOT, check=True, timeout=120,
    )  # fmt: skip
    return folder


@pytest.mark.parametrize("make", MAKES)
def test_two_processes_train_what_one_does(
    make: Callable[[], Training[Source]], trained_by_two: Path
) -> None:
    alone = make()
    assert train(alone)
    first, second = (load_checkpoint(trained_by_two / f"{make.__name__}-{k}.pt") for k in (0, 1))
    assert same_weights(first, second)
    assert first.history == second.history
    assert first.rng.bit_generator.state == alone.rng.bit_generator.state
    for name, value in alone.network.state_dict().items():
        torch.testing.assert_close(first.network.state_dict()[name], value, rtol=0.0, atol=1e-5)
    assert [episodes for episodes, _ in first.history] == [0, 16, 32]
    assert [score for _, score in first.history] == pytest.approx(
        [score for _, score in alone.history], rel=1e-3
    )


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("count", [0, 1, 7, 16])
def test_shares_are_all_items_once_and_keep_groups_whole(count: int, together: int) -> None:
    shares = [Processes(rank=k, count=3).share(count, together=together) for k in range(3)]
    items = [list(range(count))[share] for share in shares]
    assert [item for part in items for item in part] == list(range(count))
    groups = [{item // together for item in part} for part in items]
    assert sum(map(len, groups)) == len(set().union(*groups))


def test_without_torchrun_a_process_is_alone() -> None:
    with launched("cpu") as processes:
        assert (processes.rank, processes.count) == (0, 1)
