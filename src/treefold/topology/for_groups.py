"""Imported by groups for ``connect(topology=…)``, which gives each host a share by the speed of its port."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from treefold.errors import TopologyError
from treefold.topology.graph import Topology
from treefold.topology.load import load_topology
from treefold.topology.planning.host_shares import host_shares


@dataclass(frozen=True, slots=True)
class Cluster:
    """A machine with a device for each rank of a group, or for each host."""

    topology: Topology

    @property
    def digest(self) -> str:
        """128 bits in hexadecimal, the same for equal machines in every process."""
        text = json.dumps(self.topology.to_json(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def shares(self, hosts: Sequence[Sequence[int]], guarantee: str) -> tuple[Fraction, ...]:
        """Return the share of the values that each host should fold, given the ranks of each.

        Raises:
            TopologyError: the machine has neither a device for each rank nor one for each host.

        """
        devices, count = self.topology.devices, sum(map(len, hosts))
        if len(devices) == count:
            of_hosts = [[devices[rank] for rank in ranks] for ranks in hosts]
        elif len(devices) == len(hosts):
            of_hosts = [[device] for device in devices]
        else:
            raise TopologyError(
                f"The topology has {len(devices)} devices, and the group {count} ranks on {len(hosts)} hosts. Give a "
                "device for each rank, or one for each host, in their order."
            )
        contributions = [1 if guarantee == "per_plan" else len(ranks) for ranks in hosts]
        return host_shares(self.topology, of_hosts, contributions)


def read_cluster(topology: Any) -> Cluster:
    """Return the cluster that ``topology=`` of ``connect`` names: a ``Topology``, or what ``load_topology`` takes.

    Raises:
        ParseError: no such file, or one that does not hold a topology.

    """
    return Cluster(topology if isinstance(topology, Topology) else load_topology(topology))
