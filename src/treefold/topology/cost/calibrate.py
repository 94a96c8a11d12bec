"""Machines with measured links: a known machine refined by copies, or a machine made of copies alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from treefold.devices import canonical_device
from treefold.errors import TopologyError
from treefold.keyed import grouped
from treefold.topology.cost.routes import alternatives
from treefold.topology.graph import Link, Node, Topology

#: For a directed pair of devices: bytes per second of a large copy, and seconds before the first byte arrives.
Measured = Mapping[tuple[str, str], tuple[float, float]]


def refine(topology: Topology, measured: Measured) -> Topology:
    """Return the machine with the bandwidths and latencies measured by copies between its devices, one at a time.

    The bandwidth of a copy is a lower bound for every link on its route, and its latency is the sum of theirs. A link
    therefore gets the bandwidth of the fastest copy across it, and an equal part of the smallest latency. Links keep
    their values if no measured copy crossed them, or only copies of pairs with several routes or through other devices.
    ``treefold.verify_links`` measures such copies.

    Raises:
        TopologyError: a pair of devices that the machine does not have.

    """
    widths: dict[tuple[str, str], float] = {}
    alphas: dict[tuple[str, str], float] = {}
    for (source, target), (bytes_per_s, alpha_s) in measured.items():
        ends = canonical_device(source), canonical_device(target)
        strangers = [device for device in ends if topology.kinds.get(device) != "device"]
        if strangers:
            raise TopologyError.strangers(strangers, topology.devices)
        routes = alternatives(topology, *ends)
        # Several routes share a copy in unknown parts, and a device that forwards adds its own time: neither says
        # anything of a single link.
        if len(routes) != 1 or any(topology.kinds[node] == "device" for node in routes[0][1:-1]):
            continue
        links = list(itertools.pairwise(routes[0]))
        for link in links:
            widths[link] = max(widths.get(link, 0.0), bytes_per_s)
            # Latency can only be added by other links, so the smallest share is the closest to this link's own.
            alphas[link] = min(alphas.get(link, float("inf")), alpha_s / len(links))
    # If two nodes have links of two kinds, it is not known which of them the copy took.
    kinds = grouped(((link.source, link.target), link.kind) for link in topology.links)
    seen = {ends for ends in widths if len(kinds[ends]) == 1}
    links_now = tuple(
        replace(link, bytes_per_s=widths[ends], alpha_s=alphas[ends]) if ends in seen else link
        for link in topology.links
        for ends in [(link.source, link.target)]
    )
    note = f"{len(seen)} of {len(topology.links)} directed links are as measured between devices."
    return replace(topology, links=links_now, notes=(*topology.notes, note))


def from_copies(devices: Sequence[str], measured: Measured) -> Topology:
    """Return the machine that explains these copies, each measured alone, if nothing else is known.

    Each pair has a link with the bandwidth of its copy, and each device a port with the bandwidth of its fastest copy.
    Copies one at a time cannot show what several share beyond that, such as a link between sockets. ``measured`` has
    every ordered pair.

    >>> pairs = {("gpu:0", "gpu:1"): (24e9, 5e-6), ("gpu:1", "gpu:0"): (20e9, 5e-6)}
    >>> float(from_copies(["gpu:0", "gpu:1"], pairs).capacity("out of gpu:0", "into gpu:1"))
    24000000000.0
    """
    links = []
    for device in devices:
        out = max(width for (source, _), (width, _) in measured.items() if source == device)
        into = max(width for (_, target), (width, _) in measured.items() if target == device)
        links += [Link(device, f"out of {device}", "", out, 0.0), Link(f"into {device}", device, "", into, 0.0)]
    links += [
        Link(f"out of {source}", f"into {target}", "", width, alpha_s)
        for (source, target), (width, alpha_s) in measured.items()
    ]
    nodes = [Node(device, "device") for device in devices]
    nodes += [Node(f"{side} {device}", "switch") for device in devices for side in ("out of", "into")]
    note = "Links are as measured between each two devices, and a device's port is as wide as its widest link."
    return Topology("measured links", tuple(nodes), tuple(links), (note,))
