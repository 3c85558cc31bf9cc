"""Trains on one pipeline and on random ones in the processes that torchrun has started: `... FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from conductor.rl.checkpoint import save_checkpoint
from conductor.rl.ppo import train
from conductor.rl.processes import launched
from tests.rl.test_training import quick_curriculum, quick_training

if __name__ == "__main__":
    with launched("cpu") as processes:
        for make in (quick_training, quick_curriculum):
            training = make(48)
            assert train(training, processes=processes)
            save_checkpoint(training, Path(sys.argv[1]) / f"{make.__name__}-{processes.rank}.pt")
