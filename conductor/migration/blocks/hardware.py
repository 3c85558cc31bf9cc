"""What ranks compute with, and the links between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from conductor.errors import InvalidSpecError

GB_PER_S = 1e6
"""Bytes in a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link, each way.

    Attributes:
        name: as people call it.
        gb_per_s: bandwidth of one direction.
        latency_ms: of one message.
    """

    name: str
    gb_per_s: float
    latency_ms: float

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidSpecError: bandwidth or latency that cannot be.
        """
        if not self.gb_per_s > 0.0:
            raise InvalidSpecError(f"a link's bandwidth must be above 0, not {self.gb_per_s!r}")
        if not self.latency_ms >= 0.0:
            raise InvalidSpecError(f"a link's latency must be at least 0, not {self.latency_ms!r}")

    def ms(self, num_bytes: float) -> float:
        """Time of a message on the wire, without the latency."""
        return num_bytes / (self.gb_per_s * GB_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A rank's accelerator and its links.

    Attributes:
        name: of the preset.
        tflops: that training reaches, not the peak.
        memory_bytes: of a rank.
        near: link within a node.
        far: link between nodes.
        source: where the numbers come from.
    """

    name: str
    tflops: float
    memory_bytes: float
    near: Link
    far: Link
    source: str = ""

    def with_bandwidth(self, gb_per_s: float) -> Hardware:
        """The same with both links at another bandwidth."""
        return replace(
            self,
            near=replace(self.near, gb_per_s=gb_per_s),
            far=replace(self.far, gb_per_s=gb_per_s),
        )


_SOURCE = (
    "vendor data sheets (peak bf16 312 and 989 TFLOP/s, link bandwidth each way); 45 % and 40 % of"
    " the peak"
)
_ACCELERATORS = {"a100": (140.0, 80e9), "h100": (400.0, 80e9), "h200": (400.0, 141e9)}
_NVLINK = {"a100": 300.0, "h100": 450.0, "h200": 450.0}
_PCIE = {"a100": 32.0, "h100": 64.0, "h200": 64.0}
_INFINIBAND = {"a100": 25.0, "h100": 50.0, "h200": 50.0}


def _preset(accelerator: str, link: str) -> Hardware:
    tflops, memory = _ACCELERATORS[accelerator]
    far = Link(name="infiniband", gb_per_s=_INFINIBAND[accelerator], latency_ms=0.015)
    near = {
        "nvlink": Link(name="nvlink", gb_per_s=_NVLINK[accelerator], latency_ms=0.010),
        "pcie": Link(name="pcie", gb_per_s=_PCIE[accelerator], latency_ms=0.015),
        "infiniband": far,
    }[link]
    return Hardware(
        name=f"{accelerator}-{link}", tflops=tflops, memory_bytes=memory, near=near, far=far,
        source=_SOURCE,
    )  # fmt: skip


HARDWARE: dict[str, Hardware] = {
    f"{accelerator}-{link}": _preset(accelerator, link)
    for accelerator in _ACCELERATORS
    for link in ("nvlink", "pcie", "infiniband")
}


def load_hardware(name: str) -> Hardware:
    """A preset by name.

    Raises:
        InvalidSpecError: unknown; names the nearest.
    """
    if name in HARDWARE:
        return HARDWARE[name]
    near = get_close_matches(name, HARDWARE, n=1, cutoff=0.0)[0]
    raise InvalidSpecError(f"unknown hardware {name!r}: the nearest is {near!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Which ranks share what.

    Attributes:
        nodes: the node of each rank; ranks of one node use the near link.
        ports: the far port of each rank; ranks with the same port share its bandwidth.
    """

    nodes: tuple[int, ...]
    ports: tuple[int, ...]

    @classmethod
    def groups(
        cls, num_ranks: int, groups: Sequence[Sequence[int]], *, shared_port: bool = False
    ) -> Topology:
        """Nodes given as lists of ranks.

        Raises:
            InvalidSpecError: a rank that is not there, stands twice or is missing.
        """
        nodes = [-1] * num_ranks
        for node, ranks in enumerate(groups):
            for rank in ranks:
                if not 0 <= rank < num_ranks:
                    raise InvalidSpecError(
                        f"the topology names rank {rank}, but there are {num_ranks} ranks"
                    )
                if nodes[rank] >= 0:
                    raise InvalidSpecError(f"the topology names rank {rank} twice")
                nodes[rank] = node
        if -1 in nodes:
            raise InvalidSpecError(f"the topology leaves out rank {nodes.index(-1)}")
        ports = tuple(nodes) if shared_port else tuple(range(num_ranks))
        return cls(nodes=tuple(nodes), ports=ports)

    @classmethod
    def even(cls, num_ranks: int, ranks_per_node: int, *, shared_port: bool = False) -> Topology:
        """Consecutive ranks to a node."""
        ranks = range(num_ranks)
        size = max(ranks_per_node, 1)
        return cls.groups(
            num_ranks, [ranks[start : start + size] for start in ranks[::size]],
            shared_port=shared_port,
        )  # fmt: skip

    @classmethod
    def parse(cls, text: str, num_ranks: int, *, shared_port: bool = False) -> Topology:
        """Reads `0,1;2,3`: ranks of a node, nodes apart by semicolons.

        Raises:
            InvalidSpecError: no such list, or not every rank once.
        """
        try:
            groups = [[int(rank) for rank in node.split(",")] for node in text.split(";")]
        except ValueError:
            raise InvalidSpecError(
                f"a topology lists the ranks of each node, as in '0,1;2,3', not {text!r}"
            ) from None
        return cls.groups(num_ranks, groups, shared_port=shared_port)
