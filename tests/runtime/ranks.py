"""Runs a function on several gloo ranks, each a process, within a hard time limit."""

import multiprocessing
import os
import time
import traceback
from datetime import timedelta

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["conductor.runtime.executor", "tests.runtime.ranks"])


class RankDiedError(Exception):
    """A rank ended without a result, or did not end in time."""


def run_ranks(function, num_ranks, *args, timeout_s=120.0, may_die=()):
    """`function(rank, *args)` on each rank, in the default process group.

    Returns:
        What each rank returned, or the text of what it raised as an `Exception` object; None for ranks in
        `may_die`, which are ended when all others have.
    """
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ends, processes = [], []
    for rank in range(num_ranks):
        mine, theirs = _context.Pipe(duplex=False)
        process = _context.Process(
            target=_main, args=(theirs, function, rank, num_ranks, store.port, args), daemon=True
        )
        process.start()
        theirs.close()
        ends.append(mine)
        processes.append(process)
    deadline = time.monotonic() + timeout_s
    try:
        return [
            None if rank in may_die else _result(end, rank, deadline)
            for rank, end in enumerate(ends)
        ]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _result(end, rank, deadline):
    if not end.poll(max(0.0, deadline - time.monotonic())):
        raise RankDiedError(f"rank {rank} did not end in time")
    try:
        return end.recv()
    except EOFError:
        raise RankDiedError(f"rank {rank} ended without a result") from None


def _main(end, function, rank, num_ranks, port, args):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        store = dist.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=60))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)
        result = function(rank, *args)
    except Exception as error:
        result = Exception(f"{type(error).__name__}: {error}")
        if os.environ.get("SHOW_RANK_ERRORS"):
            traceback.print_exc()
    end.send(result)
    end.close()
    # Threads that wait for messages must not hold the process up.
    os._exit(0)
