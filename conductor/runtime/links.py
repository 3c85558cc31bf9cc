"""Directed links between ranks: announced messages over gloo, one group a direction.

A link carries first-in-first-out sends of one rank to one other. Each message is a small header (what
it is, for which stage and micro-batch, shapes, types) and then its tensors. Two kinds of receiver:

- `AnnouncedLink` needs no plan of the sender's order: it receives what the header announces. A thread
  waits for messages, as gloo's receives cannot be polled; since it takes whatever comes, a send never
  waits for the receiver's own progress.
- `OrderedLink` knows the sender's order (static execution) and posts all receives of a step at its start:
  no thread, and again no send that waits for the receiver's progress. (A send of gloo ends only when its
  receive is posted, and a plan may have a rank send far ahead of the receiver's turn.)
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import Work

from conductor.errors import RankError
from conductor.runtime.dispatch import Arrival

_HEADER = 64
_OUTSTANDING = 8
"""Sends that a link keeps before it waits for the oldest."""
_DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
_LOOK_NS = 50_000
"""What is taken faster than this had come before."""
_MISSING = -1
_ABORT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a rank received.

    Attributes:
        key: what it is and for whom.
        step: the sender's step.
        tensors: None where the sender had none to send.
        sender: rank in the pipeline's group.
        transfer_ms: from the send to the arrival, on the clocks of sender and receiver.
        arrived_ns: when it came, on this rank's `time.perf_counter_ns`.
        arrived_before: it was there before this rank looked, so `transfer_ms` is too long.
        work_ms: what the action that it comes from took.
    """

    key: Arrival
    step: int
    tensors: tuple[Tensor | None, ...]
    sender: int
    transfer_ms: float
    arrived_ns: int
    arrived_before: bool = False
    work_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFailure:
    """A link that broke."""

    sender: int
    error: str


class Inbox(Protocol):
    """What has come to a rank, as a `SimpleQueue`; None only wakes it up."""

    def put(self, item: Any, /) -> None:
        """From any thread."""

    def empty(self) -> bool:
        """Whether nothing is there by now."""

    def get(self, *, timeout: float | None = None) -> Message | LinkFailure | None:
        """Waits for the next; raises `Empty` after `timeout` seconds."""


Shapes = Sequence[tuple[tuple[int, ...], torch.dtype] | None]
"""Of the tensors of a message; None where one is missing."""


def links_of(stage_ranks: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """The links of a rank, (sender, receiver): both directions between ranks with neighbouring stages.

    Every rank opens its links in this order, so that nobody waits in a circle.
    """
    pairs = set()
    for one, other in zip(stage_ranks[:-1], stage_ranks[1:], strict=True):
        if one != other:
            pairs |= {(one, other), (other, one)}
    return sorted(pair for pair in pairs if rank in pair)


class Outgoing:
    """The sending end of a link.

    Args:
        group: of the link; its rank 0 sends, its rank 1 receives.
        timeout_s: longest wait for a send.
    """

    def __init__(self, group: Any, timeout_s: float) -> None:
        self._group, self._timeout = group, timedelta(seconds=timeout_s)
        self._sent: deque[tuple[Work, Tensor]] = deque()

    def send(
        self,
        key: Arrival,
        step: int,
        tensors: Sequence[Tensor | None],
        work_ns: int = 0,
    ) -> None:
        """Sends without waiting, unless several older messages are still on their way.

        Args:
            key: what it is and for whom.
            step: number of the step.
            tensors: of one micro-batch.
            work_ns: what the action that made them took.
        """
        while len(self._sent) > _OUTSTANDING:
            self._wait_oldest()
        is_grad, stage, microbatch = key
        now = time.perf_counter_ns()
        numbers = [step, int(is_grad), stage, microbatch, now, work_ns, len(tensors)]
        for tensor in tensors:
            if tensor is None:
                numbers.append(_MISSING)
            else:
                numbers += [_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape]
        if len(numbers) > _HEADER:
            raise RankError(f"stage {stage} sends {len(tensors)} tensors: too many to announce")
        numbers += [0] * (_HEADER - len(numbers))
        self._post(torch.tensor(numbers, dtype=torch.int64))
        for tensor in tensors:
            if tensor is not None:
                self._post_payload(tensor.detach().contiguous())

    def flush(self) -> None:
        """Waits until everything is sent."""
        while self._sent:
            self._wait_oldest()

    def abort(self) -> None:
        """Tells the receiver that this rank has failed, as far as that is possible."""
        header = [_ABORT, *[0] * (_HEADER - 1)]
        with suppress(RuntimeError):
            self._post(torch.tensor(header, dtype=torch.int64))

    def _post(self, tensor: Tensor) -> None:
        self._sent.append((self._group.send([tensor], 1, 0), tensor))

    def _post_payload(self, tensor: Tensor) -> None:
        self._post(tensor)

    def _wait_oldest(self) -> None:
        work, _ = self._sent[0]
        work.wait(self._timeout)
        self._sent.popleft()


class AnnouncedLink:
    """The receiving end of a link, in any order: a thread that puts what comes into the rank's inbox.

    Args:
        group: of the link.
        sender: the other end's rank in the pipeline.
        inbox: shared by all links of the rank.
    """

    def __init__(self, group: Any, sender: int, inbox: Inbox) -> None:
        self._group, self._sender, self._inbox = group, sender, inbox
        self._orders: SimpleQueue[tuple[int, dict[int, float]] | None] = SimpleQueue()
        name = f"conductor-from-{sender}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def expect(self, count: int, lag_ms: dict[int, float]) -> None:
        """Receive this many messages; each is held back for the lag of its link, by the lower stage."""
        self._orders.put((count, lag_ms))

    def close(self) -> None:
        """Ends the thread once it has received what it expects."""
        self._orders.put(None)

    def _run(self) -> None:
        try:
            while (order := self._orders.get()) is not None:
                count, lag_ms = order
                for _ in range(count):
                    self._inbox.put(self._receive(lag_ms))
        except Exception as error:  # of any kind: the rank's main thread must hear of it
            self._inbox.put(LinkFailure(sender=self._sender, error=str(error)))

    def _receive(self, lag_ms: dict[int, float]) -> Any:
        numbers = self._take_header()
        tensors: list[Tensor | None] = []
        for shape in announced(numbers):
            tensor = shape and torch.empty(shape[0], dtype=shape[1])
            if tensor is not None:
                self._take(tensor)
            tensors.append(tensor)
        return message(numbers, tensors, self._sender, lag_ms)

    def _take_header(self) -> list[int]:
        header = torch.empty(_HEADER, dtype=torch.int64)
        self._take(header)
        numbers: list[int] = header.tolist()
        if numbers[0] == _ABORT:
            raise ConnectionAbortedError("it has failed")
        return numbers

    def _take(self, tensor: Tensor) -> None:
        self._group.recv([tensor], 0, 0).wait()


class OrderedLink:
    """The receiving end of a link whose sender keeps to a known order.

    Args:
        group: of the link.
        sender: the other end's rank in the pipeline.
        shapes_of: what the tensors of a message are like.
    """

    def __init__(self, group: Any, sender: int, shapes_of: Callable[[Arrival], Shapes]) -> None:
        self._group, self._sender, self._shapes_of = group, sender, shapes_of
        self._posted: deque[tuple[Arrival, list[Tensor | None], list[Work]]] = deque()
        self._lag_ms: dict[int, float] = {}

    def expect(self, messages: Sequence[Arrival], lag_ms: dict[int, float]) -> None:
        """These messages come, in this order, held back as an `AnnouncedLink` does."""
        self._lag_ms = lag_ms
        for key in messages:
            header = torch.empty(_HEADER, dtype=torch.int64)
            tensors = [
                header, *(s and torch.empty(s[0], dtype=s[1]) for s in self._shapes_of(key))
            ]  # fmt: skip
            works = [self._group.recv([tensor], 0, 0) for tensor in tensors if tensor is not None]
            self._posted.append((key, tensors, works))

    def take(self) -> Message | LinkFailure:
        """Waits for the next message."""
        key, tensors, works = self._posted[0]
        header = tensors[0]
        assert header is not None
        try:
            began_ns = time.perf_counter_ns()
            works[0].wait()
            numbers = header.tolist()
            if numbers[0] == _ABORT:
                raise ConnectionAbortedError("it has failed")
            got = list(announced(numbers))
            if got != list(self._shapes_of(key)):
                # Payloads of another size would end up in the wrong buffers: read no further.
                return message(numbers, [s and torch.empty(*s[:1], dtype=s[1]) for s in got],
                                self._sender, {})  # fmt: skip
            for work in works[1:]:
                work.wait()
        except Exception as error:  # of any kind: the step says what it means
            return LinkFailure(sender=self._sender, error=str(error))
        self._posted.popleft()
        got_it = message(numbers, tensors[1:], self._sender, self._lag_ms)
        # gloo says when a message has come only to those who wait for it.
        return replace(got_it, arrived_before=time.perf_counter_ns() - began_ns < _LOOK_NS)


def announced(numbers: Sequence[int]) -> Iterator[tuple[tuple[int, ...], torch.dtype] | None]:
    """Shapes and types of the tensors that a header announces."""
    rest = iter(numbers[7:])
    for _ in range(numbers[6]):
        dtype = next(rest)
        if dtype == _MISSING:
            yield None
        else:
            yield tuple(next(rest) for _ in range(next(rest))), _DTYPES[dtype]


def message(
    numbers: Sequence[int],
    tensors: Sequence[Tensor | None],
    sender: int,
    lag_ms: dict[int, float],
) -> Message:
    """What has arrived, after the lag of its link."""
    step, is_grad, stage, microbatch, sent_ns = numbers[:5]
    lower = stage if is_grad else stage - 1
    early_s = sent_ns / 1e9 + lag_ms.get(lower, 0.0) / 1e3 - time.perf_counter()
    if early_s > 0:
        time.sleep(early_s)
    now_ns = time.perf_counter_ns()
    return Message(
        key=(bool(is_grad), stage, microbatch),
        step=step,
        tensors=tuple(tensors),
        sender=sender,
        transfer_ms=(now_ns - sent_ns) / 1e6,
        arrived_ns=now_ns,
        work_ms=numbers[5] / 1e6,
    )
