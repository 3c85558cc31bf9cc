"""Links of the exchange: every rank to every other, directed, announced, first in first out.

Apart from the pipeline's own links, so that moved work never stands in the way of activations. A thread
for each incoming link takes whatever comes at once, and one for each outgoing link waits until a message
has gone; the rank's main thread never waits for a link.

Between GPUs the tensors go on an NCCL communicator of two ranks for each direction: the receiver posts what
the header, on gloo, has announced. That way is untested: nothing here has run on GPUs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from conductor.runtime import torch_shim
from conductor.runtime.transport import warm_up

_HEADER = 128
_NUMBERS = 24
"""Of a header; then the number of tensors, and of each its type, its dimensions and its shape."""
_FOREVER = timedelta(days=365)
_PAUSE_S = 20e-6
_CPU = torch.device("cpu")
_DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool,
)  # fmt: skip
_BATCH, _BACKLOG = 16, 128
"""So many sends are looked after together; where so many are under way, the receiver takes no more."""
_Sent = list[tuple[Any, Tensor]]


class What(IntEnum):
    """What a message of the exchange is."""

    STATE = 1
    REQUEST = 2
    ACCEPT = 3
    REFUSE = 4
    CANCEL = 5
    DONE = 6
    END = 7
    POST = 8
    RESULT = 9
    FINISHED = 10
    WEIGHTS = 11
    COLLECT = 12
    RETURNED = 13
    CLOSE = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """A message of the exchange.

    Attributes:
        what: it is.
        step: of the sender.
        numbers: what they mean depends on `what`; at most 22.
        tensors: its payload.
    """

    what: What
    step: int
    numbers: Sequence[int] = ()
    tensors: Sequence[Tensor] = ()


class ExchangeLinks:
    """The links of one rank to all others.

    Args:
        name: of the links, the same on every rank.
        rank: this one.
        num_ranks: all of them.
        timeout_s: longest wait for the others to open theirs.
        on_packet: called by the threads of the links with the sender and what it sent.
        on_broken: called once with a rank whose link broke.
        device: of the tensors.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        num_ranks: int,
        timeout_s: float,
        on_packet: Callable[[int, Packet], None],
        on_broken: Callable[[int], None],
        device: torch.device = _CPU,
    ) -> None:
        self._device = device
        self._on_packet, self._on_broken = on_packet, on_broken
        self._groups: dict[int, tuple[Any, Any]] = {}
        self._locks: dict[int, threading.Lock] = {}
        self._going: dict[int, SimpleQueue[_Sent | None]] = {}
        self._sent: dict[int, _Sent] = {}
        self._under_way: dict[int, int] = {}
        self._broken: set[int] = set()
        incoming = {}
        for sender in range(num_ranks):
            for receiver in range(num_ranks):
                if sender == receiver or rank not in (sender, receiver):
                    continue
                link, end = f"{name}/help/{sender}-{receiver}", int(receiver == rank)
                headers = payload = torch_shim.pair_group(link, end, timeout_s)
                if device.type == "cuda":
                    payload = torch_shim.nccl_pair(f"{link}/payload", end, timeout_s, device)
                    warm_up(payload, end, device)
                if end:
                    incoming[sender] = headers, payload
                else:
                    self._groups[receiver] = headers, payload
                    self._locks[receiver] = threading.Lock()
                    self._going[receiver], self._under_way[receiver] = SimpleQueue(), 0
                    self._sent[receiver] = []
        for other, groups in incoming.items():
            for target, arguments in ((self._receive, (other, *groups)), (self._reap, (other,))):
                threading.Thread(
                    target=target, args=arguments, name=f"conductor-help-{other}", daemon=True
                ).start()

    @property
    def others(self) -> Sequence[int]:
        """The other ranks."""
        return tuple(self._groups)

    def is_open(self, rank: int) -> bool:
        """Whether a rank takes messages, as far as is known."""
        return rank not in self._broken and self._under_way[rank] < _BACKLOG

    def send(self, receiver: int, packet: Packet) -> None:
        """Sends without waiting; to a rank that is gone, nothing."""
        self._post(receiver, [_header(packet), *(t.detach().contiguous() for t in packet.tensors)])

    def broadcast(self, packet: Packet) -> None:
        """Sends the same to all others, without tensors."""
        header = _header(packet)
        for rank in self._groups:
            self._post(rank, [header])

    def _post(self, receiver: int, tensors: Sequence[Tensor]) -> None:
        if not self.is_open(receiver):
            return
        try:
            with self._locks[receiver]:
                headers, payload = self._groups[receiver]
                sent = self._sent[receiver]
                sent.append((headers.send([tensors[0]], 1, 0), tensors[0]))
                sent += [(payload.send([t], 1, 0), t) for t in tensors[1:] if t.numel()]
                if len(sent) >= _BATCH:
                    self._under_way[receiver] += len(sent)
                    self._going[receiver].put(sent)
                    self._sent[receiver] = []
        except RuntimeError:
            self._break(receiver)

    def close(self) -> None:
        """Ends the threads, here and where the others wait for this rank."""
        self.broadcast(Packet(what=What.CLOSE, step=0))
        for going in self._going.values():
            going.put(None)

    def _break(self, rank: int) -> None:
        if rank not in self._broken:
            self._broken.add(rank)
            self._on_broken(rank)

    def _reap(self, receiver: int) -> None:
        """Waits until messages have gone (gloo lets go of one only then)."""
        with suppress(RuntimeError):
            while (works := self._going[receiver].get()) is not None:
                for work, tensor in works:
                    _end(work, tensor)
                with self._locks[receiver]:
                    self._under_way[receiver] -= len(works)
            return
        self._break(receiver)

    def _receive(self, sender: int, headers: Any, payload: Any) -> None:
        header = torch.empty(_HEADER, dtype=torch.int64)
        try:
            while True:
                headers.recv([header], 0, 0).wait(_FOREVER)
                numbers = header.tolist()
                if numbers[0] == What.CLOSE:
                    return
                rest = iter(numbers[_NUMBERS + 1 :])
                tensors = []
                for _ in range(numbers[_NUMBERS]):
                    dtype = _DTYPES[next(rest)]
                    shape = [next(rest) for _ in range(next(rest))]
                    tensors.append(torch.empty(shape, dtype=dtype, device=self._device))
                works = [(payload.recv([t], 0, 0), t) for t in tensors if t.numel()]
                for work, tensor in works:
                    _end(work, tensor)
                self._on_packet(
                    sender,
                    Packet(
                        what=What(numbers[0]), step=numbers[1], numbers=numbers[2:_NUMBERS],
                        tensors=tensors,
                    ),
                )  # fmt: skip
        except RuntimeError:
            self._break(sender)


def _end(work: Any, tensor: Tensor) -> None:
    """Waits for the end of a send or receive, on a GPU by looking: `wait` would only order streams."""
    while tensor.is_cuda and not work.is_completed():
        time.sleep(_PAUSE_S)
    work.wait(_FOREVER)


def _header(packet: Packet) -> Tensor:
    """What a packet is, and what its tensors are like."""
    numbers = [int(packet.what), packet.step, *packet.numbers]
    numbers += [0] * (_NUMBERS - len(numbers)) + [len(packet.tensors)]
    for tensor in packet.tensors:
        numbers += [_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape]
    return torch.tensor(numbers + [0] * (_HEADER - len(numbers)))
