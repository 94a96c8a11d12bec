"""The machine that this process runs on, as ``treefold.verify_links`` measured it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence

from treefold.devices import device_type
from treefold.errors import TreefoldError
from treefold.execution import links
from treefold.topology.cost import from_copies, refine
from treefold.topology.discover import discover_topology
from treefold.topology.graph import Topology

_HOST = "cpu:0"
_SLOWER = frozenset({"pcie", "sys"})  # idle in copies between GPUs that something faster joins


def measured_machine(devices: Sequence[str]) -> Topology | None:
    """Return what joins these distinct devices, as wide as copies in this process were; None if a pair was not proved.

    GPUs that NVML counts as CUDA does are taken with what the system says of their links; other devices as if only
    each one's own port were shared (``treefold.topology.cost.from_copies``).
    """
    copies = _copies(devices)
    if copies is None:
        return None
    found = _discovered(devices)
    return from_copies(devices, copies) if found is None else refine(found, copies)


def _copies(devices: Sequence[str]) -> Mapping[tuple[str, str], tuple[float, float]] | None:
    """Return bytes per second and latency of every ordered pair, by the host for pairs that lie."""
    proved = {(link.source, link.target): link for link in links.known() if link.is_proved}
    tried = {(link.source, link.target) for link in links.known()}
    found = {}
    for pair in [(source, target) for source in devices for target in devices if source != target]:
        hops = [proved.get(hop) for hop in ([pair] if pair in proved else [(pair[0], _HOST), (_HOST, pair[1])])]
        if pair not in tried or any(hop is None for hop in hops):
            return None
        there = [hop for hop in hops if hop is not None]
        found[pair] = min(hop.bytes_per_s for hop in there), sum(hop.alpha_s for hop in there)
    return found


def _discovered(devices: Sequence[str]) -> Topology | None:
    """Return these GPUs as the system shows them; None where it does not, or may number them in another order."""
    in_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" and "CUDA_VISIBLE_DEVICES" not in os.environ
    if not in_order or any(device_type(device) != "gpu" for device in devices):
        return None
    try:
        found = discover_topology().restricted(devices)
    except (TreefoldError, OSError):
        return None
    with contextlib.suppress(TreefoldError):  # not joined without them
        links_left = tuple(link for link in found.links if link.kind not in _SLOWER)
        return dataclasses.replace(found, links=links_left)
    return found
