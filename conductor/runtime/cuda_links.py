"""Links between GPUs: headers on gloo, tensors on NCCL. Untested: nothing here has run on GPUs.

NCCL has no tags: it matches sends and receives in the order of their issue, on each communicator. So each
direction of a link has one of its own, of two ranks, and the receiver posts what a header has announced.
Sends and receives run on the communicator's own stream, apart from the actions. A rank sends what it has
finished and posts what has been sent, so that no operation waits for one that is not under way.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import torch
from torch import Tensor

from conductor.runtime import links
from conductor.runtime.links import AnnouncedLink, Inbox, LinkFailure, Message, Outgoing

_PAUSE_S = 20e-6
"""Between two looks at an event."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posted:
    """A message on its way: its receives are posted."""

    numbers: Sequence[int]
    tensors: Sequence[Tensor | None]
    works: Sequence[Any]
    sender: int
    lag_ms: dict[int, float]


class CudaOutgoing(Outgoing):
    """The sending end.

    Args:
        headers: gloo group of the link; its rank 0 sends.
        payload: NCCL group of the link, alike.
        timeout_s: longest wait for a send.
    """

    def __init__(self, headers: Any, payload: Any, timeout_s: float) -> None:
        super().__init__(headers, timeout_s)
        self._payload, self._timeout_s = payload, timeout_s
        self._in_flight: deque[tuple[Any, Tensor]] = deque()

    def _post_payload(self, tensor: Tensor) -> None:
        while self._in_flight and self._in_flight[0][0].is_completed():
            self._in_flight.popleft()
        self._in_flight.append((self._payload.send([tensor], 1, 0), tensor))

    def flush(self) -> None:
        """Waits until everything is sent, by looking: no stream waits."""
        super().flush()
        deadline = time.monotonic() + self._timeout_s
        while self._in_flight:
            if self._in_flight[0][0].is_completed():
                self._in_flight.popleft()
            elif time.monotonic() > deadline:
                raise TimeoutError(f"a send did not end in {self._timeout_s:g} s")
            else:
                time.sleep(_PAUSE_S)


class CudaLink(AnnouncedLink):
    """The receiving end: a thread posts what headers announce; the inbox tells when it is there.

    Args:
        headers: gloo group of the link.
        payload: NCCL group of the link.
        sender: the other end's rank in the pipeline.
        inbox: shared by all links of the rank.
        device: to receive on.
    """

    def __init__(
        self, headers: Any, payload: Any, sender: int, inbox: Inbox, device: torch.device
    ) -> None:
        self._payload, self._device = payload, device
        # Not the stream of the actions: a receive would begin only after those queued there.
        self._on_stream: Callable[[], AbstractContextManager[Any]] = nullcontext
        if device.type == "cuda":
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types here
            self._on_stream = lambda: torch.cuda.stream(stream)
        super().__init__(headers, sender, inbox)

    def _receive(self, lag_ms: dict[int, float]) -> Posted:
        numbers = self._take_header()
        with self._on_stream():
            tensors = [
                shape and torch.empty(shape[0], dtype=shape[1], device=self._device)
                for shape in links.announced(numbers)
            ]
            works = [self._payload.recv([t], 0, 0) for t in tensors if t is not None]
        return Posted(
            numbers=numbers, tensors=tensors, works=works, sender=self._sender, lag_ms=lag_ms
        )


class PolledInbox:
    """A queue like `SimpleQueue`, for a rank's main thread, which gives what is posted once it has arrived."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Message | LinkFailure | Posted | None] = SimpleQueue()
        self._posted: list[Posted] = []
        self._ready: deque[Message | LinkFailure | None] = deque()

    def put(self, item: Message | LinkFailure | Posted | None) -> None:
        """From any thread."""
        self._queue.put(item)

    def empty(self) -> bool:
        """Whether nothing has arrived by now."""
        self._look()
        return not self._ready

    def get(self, *, timeout: float | None = None) -> Message | LinkFailure | None:
        """Waits for the next.

        Raises:
            Empty: nothing came in `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.empty():
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0.0:
                raise Empty
            if self._posted:
                time.sleep(_PAUSE_S)
            else:
                self._sort(self._queue.get(timeout=left_s))
        return self._ready.popleft()

    def _look(self) -> None:
        with suppress(Empty):
            while True:
                self._sort(self._queue.get_nowait())
        arrived = [posted for posted in self._posted if all(w.is_completed() for w in posted.works)]
        for posted in arrived:
            self._posted.remove(posted)
            for work in posted.works:
                work.wait()  # over already: raises what went wrong, and orders the streams
            for tensor in posted.tensors:
                if tensor is not None and tensor.is_cuda:
                    tensor.record_stream(torch.cuda.current_stream(tensor.device))
            self._ready.append(
                links.message(posted.numbers, posted.tensors, posted.sender, posted.lag_ms)
            )

    def _sort(self, item: Message | LinkFailure | Posted | None) -> None:
        if isinstance(item, Posted):
            self._posted.append(item)
        else:
            self._ready.append(item)


class CudaWatch:
    """Times an action on its device, and waits for its end by looking: nothing is synchronised.

    The rank starts an action when the last one is over, as on a CPU: then it knows what it can start. The
    gap is the launch of the first kernel.

    Args:
        event: makes an event with times; `torch.cuda.Event(enable_timing=True)` by default.
    """

    def __init__(self, event: Callable[[], Any] | None = None) -> None:
        make = event or partial(torch.cuda.Event, enable_timing=True)
        self._start, self._end = make(), make()

    def start(self) -> None:
        """The action's first kernel follows."""
        self._start.record()

    def finish(self) -> int:
        """Its last kernel is queued: waits for it; gives nanoseconds that the device took."""
        self._end.record()
        while not self._end.query():
            time.sleep(_PAUSE_S)
        return int(self._start.elapsed_time(self._end) * 1e6)
