"""Starts the ranks of a run on this machine, and joins one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from conductor.errors import ConductorError

T = TypeVar("T")

RENDEZVOUS = "CONDUCTOR_RENDEZVOUS"
"""File in which ranks started by `launch` meet; `torchrun` has its own way."""
GRACE_S = 10.0
"""How long the other ranks may take to end by themselves once one has failed."""


def is_rank() -> bool:
    """Whether this process was started as a rank, by `launch` or by `torchrun`."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def join_ranks() -> tuple[int, int]:
    """Enters the default process group (gloo); gives this rank and the number of ranks."""
    import torch.distributed as dist

    file = os.environ.get(RENDEZVOUS)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{file}" if file else "env://",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    return dist.get_rank(), dist.get_world_size()


def from_first_rank(make: Callable[[], T]) -> T:
    """What rank 0 makes, on every rank; or the error of rank 0."""
    import torch.distributed as dist

    from conductor.runtime.collectives import broadcast

    made: T | ConductorError | None = None
    if dist.get_rank() == 0:
        try:
            made = make()
        except ConductorError as error:
            made = error
    found: T | ConductorError = broadcast(made, 0)
    if isinstance(found, ConductorError):
        raise found
    return found


def conductor_command(arguments: Sequence[str]) -> list[str]:
    """`python -m conductor ARGUMENTS`."""
    return [sys.executable, "-m", "conductor", *arguments]


def launch(
    command: Sequence[str], num_ranks: int, *, stdout: int | None = None, **more: str
) -> int:
    """Runs a command once a rank and waits for all.

    Each gets the variables that torchrun sets. When one rank fails, the others get a few seconds to say
    why they stop, and are ended then.

    Args:
        command: with its arguments.
        num_ranks: how often to run it.
        stdout: file descriptor for the ranks' output; None is this process's.
        more: variables for their environment.

    Returns:
        0, or the first failing rank's exit code.
    """
    with tempfile.TemporaryDirectory(prefix="conductor-") as folder:
        environment = {
            "OMP_NUM_THREADS": "1",
            **os.environ,
            **more,
            RENDEZVOUS: str(Path(folder) / "ranks"),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "WORLD_SIZE": str(num_ranks),
            "LOCAL_WORLD_SIZE": str(num_ranks),
        }
        ranks = [
            subprocess.Popen(
                [*command],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
            )
            for rank in range(num_ranks)
        ]
        try:
            return _wait(ranks)
        finally:
            for process in ranks:
                if process.poll() is None:
                    process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    deadline = None
    failed = 0
    while True:
        codes = [process.poll() for process in ranks]
        if all(code is not None for code in codes):
            return failed or next((code for code in codes if code), 0)
        failed = failed or next((code for code in codes if code), 0)
        if failed and deadline is None:
            deadline = time.monotonic() + GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            return failed
        time.sleep(0.05)
