"""The scenes to measure, each of which one job serves, and the rows of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from lab import Network, launch, rails, star
from treefold.topology import TopologyBuilder
from treefold.topology.planning.tree_packing import optimal_packing

#: What a full Ethernet frame of 1514 bytes carries for TCP: without the headers of Ethernet, IP and TCP with its times.
_PAYLOAD = Fraction(1448, 1514)
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        network: The rates of the network.
        nbytes: Bytes of each rank's value.
        shares: The share of the value that each host owns in the raw exchange, at which it is fastest.
        calls: The number of calls that are timed as one, because a single call is too short.

    """

    network: Network
    nbytes: int
    shares: tuple[int, ...] = (1, 1, 1, 1)
    calls: int = 1

    @property
    def rates(self) -> list[float]:
        """The rate of each host, with all of its ports, in Mbit/s."""
        found = [0.0] * self.network.hosts
        for cable in self.network.cables:
            found[cable.host] += cable.mbit_per_s
        return found

    @property
    def is_latency(self) -> bool:
        """True if the time is shown in place of a ratio to what the network allows."""
        return self.calls > 1


@dataclass(frozen=True, slots=True)
class Scene:
    """Rows that differ only in rates and sizes: the cables and the placement of ranks are the same."""

    name: str
    rows: tuple[Row, ...]
    placement: tuple[int, ...]


SCENES = (
    Scene(
        "switch",
        (
            Row(star(1000, 1000, 1000, 1000), 32 * _MIB),
            Row(star(100, 100, 100, 100), 16 * _MIB),
            Row(star(200, 200, 200, 50), 16 * _MIB, shares=(1, 1, 1, 0)),
            Row(star(1000, 1000, 1000, 1000), 4096, calls=50),
        ),
        launch.blocks(4, 1),
    ),
    Scene("two NICs", (Row(rails(100, hosts=4, nics=2), 16 * _MIB),), launch.blocks(4, 1)),
    Scene("8 ranks in blocks", (Row(star(100, 100, 100, 100), 16 * _MIB),), launch.blocks(4, 2)),
    Scene("8 ranks round robin", (Row(star(100, 100, 100, 100), 16 * _MIB),), launch.round_robin(4, 2)),
    *(
        Scene(
            f"2 hosts of {ranks} ranks",
            tuple(Row(star(100, 100), size * _MIB, shares=(1, 1)) for size in (8, 16)),
            launch.blocks(2, ranks),
        )
        for ranks in (4, 8)
    ),
)


def optimum(network: Network) -> float:
    """Return the bytes per second of the fastest all-reduce of a value per host, by the proof of treefold's planner."""
    builder = TopologyBuilder(network.name)
    for host in range(network.hosts):
        builder.device(f"cpu:{host}")
    for switch in range(network.switches):
        builder.switch(f"switch{switch}")
    ends = [(f"cpu:{cable.host}", f"switch{cable.switch}", cable.mbit_per_s) for cable in network.cables]
    ends += [(f"switch{trunk.first}", f"switch{trunk.second}", trunk.mbit_per_s) for trunk in network.trunks]
    for source, target, mbit_per_s in ends:
        builder.link(source, target, kind="net", gb_per_s=mbit_per_s / 8000 * _PAYLOAD)
    algbw = optimal_packing(builder.build()).algbw
    if algbw is None:  # one host has nobody to exchange with
        return math.inf
    return float(algbw)
