"""The bottleneck of a machine in words, as the certificate of its packing proves it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from treefold.devices import Device, device_type
from treefold.topology.graph import Topology
from treefold.topology.planning.tree_packing import TreePacking

_WHERE = {"sys": "between sockets", "net": "between hosts", "pcie": "over PCIe", "nvlink": "over NVLink"}
_WHERE |= {"xgmi": "over xGMI", "c2c": "over C2C"}
_SHOWN = 4


def describe_bottleneck(packing: TreePacking, topology: Topology) -> str:
    """Return which devices are held apart by which links, such as "GPUs 0–3 against 4–7: 16 GB/s between sockets"."""
    certificate = packing.certificate
    if certificate is None:
        return "none: one device has nothing to send"
    kinds: dict[tuple[str, float], None] = {}
    for source, target, _ in certificate.prices:
        for link in topology.links:
            if (link.source, link.target) == (source, target):
                is_nic = "nic" in {topology.kinds[source], topology.kinds[target]}
                kinds[_where("net" if is_nic else link.kind), link.bytes_per_s / 1e9] = None
    spots = list(dict.fromkeys(where for where, _ in kinds))
    groups = _groups(certificate.parts)
    parts = len(certificate.parts)
    if certificate.is_partition or parts == 2:  # noqa: PLR2004 - then the bound is what joins the two
        whole = float(certificate.bound) / 1e9 * (parts - 1)
        return f"{groups}: {whole:.4g} GB/s {' and '.join(spots)}{' in all' if parts > 2 else ''}"  # noqa: PLR2004
    each = []
    for spot in spots:
        widths = sorted({f"{width:.4g}" for where, width in kinds if where == spot}, key=float)
        each.append(f"{', '.join(widths)} GB/s per link {spot}")
    return f"{groups}: {' and '.join(each)}"


def _where(kind: str) -> str:
    return _WHERE.get(kind, f"over {kind}" if kind else "between them")


def _groups(parts: Sequence[Sequence[str]]) -> str:
    noun = "GPUs" if all(device_type(name) == "gpu" for part in parts for name in part) else "devices"
    if all(len(part) == 1 for part in parts):
        return f"each of {len(parts)} {noun} against the others"
    shown = [in_ranges(part) for part in parts[:_SHOWN]]
    more = f" … ({len(parts)} groups)" if len(parts) > _SHOWN else ""
    return f"{noun} {' against '.join(shown)}{more}"


def in_ranges(devices: Sequence[str]) -> str:
    """Return device numbers, runs of them shortened; whole names where they are not all GPUs.

    >>> in_ranges(["gpu:0", "gpu:1", "gpu:2", "gpu:5"]), in_ranges(["cpu:0", "gpu:1"])
    ('0–2, 5', 'cpu:0, gpu:1')
    """
    if any(device_type(name) != "gpu" for name in devices):
        return ", ".join(devices)
    numbers = sorted(Device.parse(name).index for name in devices)
    starts = [numbers[0], *(b for a, b in pairwise(numbers) if b > a + 1)]
    stops = [*(a for a, b in pairwise(numbers) if b > a + 1), numbers[-1]]
    return ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in zip(starts, stops, strict=True))
