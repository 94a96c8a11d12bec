"""The shape of a lab: hosts, switches, and the cables between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cable:
    """The cable from a host's NIC (``eth<nic>``) to a switch, both by number; equally fast in both directions."""

    host: int
    nic: int
    switch: int
    mbit_per_s: float


@dataclass(frozen=True, slots=True)
class Trunk:
    """A cable between two switches."""

    first: int
    second: int
    mbit_per_s: float


@dataclass(frozen=True, slots=True)
class Network:
    """Hosts and switches are numbered from 0, as are the NICs of a host."""

    name: str
    cables: tuple[Cable, ...]
    trunks: tuple[Trunk, ...] = ()

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return 1 + max(cable.host for cable in self.cables)

    @property
    def switches(self) -> int:
        """The number of switches."""
        return 1 + max(cable.switch for cable in self.cables)

    @property
    def nics(self) -> int:
        """The largest number of NICs of a host."""
        return 1 + max(cable.nic for cable in self.cables)


def star(*mbit_per_s: float) -> Network:
    """Return one switch, and a host for each rate; one rate lower than the others is a slow port."""
    cables = tuple(Cable(host, 0, 0, rate) for host, rate in enumerate(mbit_per_s))
    return Network("star " + " ".join(f"{rate:g}" for rate in mbit_per_s), cables)


def racks(trunk_mbit_per_s: float, *racks_mbit_per_s: Sequence[float]) -> Network:
    """Return a switch per rack, each joined to the first by a trunk, and a host for each rate of a rack."""
    rates = [(switch, rate) for switch, rack in enumerate(racks_mbit_per_s) for rate in rack]
    cables = tuple(Cable(host, 0, switch, rate) for host, (switch, rate) in enumerate(rates))
    trunks = tuple(Trunk(0, switch, trunk_mbit_per_s) for switch in range(1, len(racks_mbit_per_s)))
    shown = " + ".join(" ".join(f"{rate:g}" for rate in rack) for rack in racks_mbit_per_s)
    return Network(f"racks {shown}, trunk {trunk_mbit_per_s:g}", cables, trunks)


def rails(mbit_per_s: float, *, hosts: int, nics: int) -> Network:
    """Return hosts with several NICs, and a switch for each: NIC k of every host leads to switch k."""
    cables = tuple(Cable(host, nic, nic, mbit_per_s) for host in range(hosts) for nic in range(nics))
    return Network(f"rails {hosts} x {nics} x {mbit_per_s:g}", cables)
