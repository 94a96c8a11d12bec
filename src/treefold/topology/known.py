"""Machines known by name, and their NVLinks, which can be added to a description that lacks them.

Bandwidths are those of the data sheets, per link and direction, unless a name says otherwise. Latencies are the priors
of ``rates.py``, to be replaced by measured ones. A machine has the links that its makers drew: NVLinks or xGMI between
devices, or a switch that all of them share. PCIe is left out if something faster joins all devices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from treefold.devices import device_type
from treefold.errors import TopologyError
from treefold.errors.words import some
from treefold.topology import rates
from treefold.topology.gpus import LINK_NOUNS, model_named
from treefold.topology.graph import Link, Node, Topology, TopologyBuilder
from treefold.topology.machine import SWITCH_NAMES

_QUAD = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
_V100_QUAD = dict(zip(_QUAD, (1, 1, 2, 2, 1, 2), strict=True))  # NVLinks per pair
#: xGMI links per pair of GCDs of a box of eight MI250: 4 within a package, 24 between packages.
_MI250 = (
    "0-1:4 2-3:4 4-5:4 6-7:4 8-9:4 10-11:4 12-13:4 14-15:4 0-4:2 0-8:1 1-5:1 1-9:1 1-10:1 2-6:1 2-9:1 2-10:1 3-7:2 "
    "3-11:1 4-6:1 5-6:1 5-7:1 8-12:2 9-13:1 10-14:1 11-15:2 12-14:1 13-14:1 13-15:1"
)

_BRIDGES = [(first, first + 1, 12) for first in (0, 2, 4, 6)]
#: CUDA's compute capability of the GPUs of the known machines with NVLinks to lend: one host, GPUs on boards.
_CAPABILITIES = {
    "dgx1_p100": 60,
    "p3_8xlarge": 70,
    "dgx1_v100": 70,
    "dgx2": 70,
    "dgx_a100": 80,
    "dgx_h100": 90,
    "dgx_b200": 100,
}
#: The known machines with NVLinks that ``with_nvlinks`` can add to others.
LENDERS = tuple(_CAPABILITIES)
_SWITCH = SWITCH_NAMES["nvlink"]
_GIGA = 10**9


def known_topology(name: str) -> Topology:
    """Return the machine of this name.

    Machines with NVLink: ``dgx1_p100``, ``dgx1_v100``, ``dgx2``, ``dgx_a100``, ``dgx_h100``, ``dgx_b200``,
    ``p3_8xlarge``. Machines with xGMI: ``mi250`` (8 modules, 16 GCDs), ``mi300x`` (48 GB/s per link, which copies
    reach) and ``mi300x_raw`` (64 GB/s, as on the data sheet). Machines with PCIe: ``pcie3_8gpu`` (PCIe 3, two Intel
    sockets), ``a100_pcie_8gpu`` (PCIe 4, two AMD sockets, NVLink bridges between pairs).

    Shapes: ``ring:8`` and ``line:8`` are 8 devices with links of 25 GB/s between neighbours, and ``mesh:8`` links all
    pairs. A second number is the bandwidth: ``ring:8:50`` has 50 GB/s. Hosts: ``2x8_a100`` is 2 hosts of 8 devices;
    others are ``4x8_h100`` and ``2x16_mi250``, with any number of hosts. Each device has a NIC, and a rail switch joins
    the NICs of one position.

    Raises:
        TopologyError: no machine has this name; the nearest is named.

    >>> len(known_topology("dgx2").devices)
    16
    """
    if isinstance(name, str):
        if name in _MACHINES:
            return _MACHINES[name]()
        shape = re.fullmatch(r"(ring|line|mesh):(\d{1,3})(?::(\d{1,6}(?:\.\d{1,6})?))?", name)
        if shape and int(shape[2]):
            gb_per_s = float(shape[3] or 25)
            return _direct(name, int(shape[2]), _SHAPES[shape[1]](int(shape[2])), gb_per_s=gb_per_s)
        cluster = re.fullmatch(r"(\d{1,3})x(8_a100|8_h100|16_mi250)", name)
        if cluster and int(cluster[1]):
            return _CLUSTERS[cluster[2]](name, int(cluster[1]))
    raise TopologyError.unknown_name(name, known_names())


def known_names() -> tuple[str, ...]:
    """Return the names that ``known_topology`` accepts; of names with numbers, examples."""
    return (*_MACHINES, "ring:8", "line:8", "mesh:8", "2x8_a100", "2x8_h100", "4x8_h100", "8x8_h100", "2x16_mi250")


def _gpu(number: int) -> str:
    return f"gpu:{number}"


def _start(name: str, count: int) -> TopologyBuilder:
    builder = TopologyBuilder(name)
    for number in range(count):
        builder.device(_gpu(number))
    return builder


def _direct(
    name: str, count: int, pairs: Iterable[tuple[int, int, int]], *, gb_per_s: float, kind: str = "nvlink"
) -> Topology:
    """Return ``count`` devices joined by links of ``gb_per_s`` each; ``pairs`` are (one, other, number of links)."""
    builder = _start(name, count)
    _join(builder, pairs, gb_per_s=gb_per_s, kind=kind)
    return builder.build()


def _join(
    builder: TopologyBuilder, pairs: Iterable[tuple[int, int, int]], *, gb_per_s: float, kind: str, first: int = 0
) -> None:
    for a, b, links in pairs:
        ends, together = (_gpu(first + a), _gpu(first + b)), links * gb_per_s
        builder.link(*ends, gb_per_s=together, alpha_us=rates.ALPHA_NVLINK_US, kind=kind)


def _ring(count: int) -> list[tuple[int, int, int]]:
    return _line(count) + ([(count - 1, 0, 1)] if count > 2 else [])  # noqa: PLR2004 - two devices have one link


def _line(count: int) -> list[tuple[int, int, int]]:
    return [(number, number + 1, 1) for number in range(count - 1)]


def _mesh(count: int) -> list[tuple[int, int, int]]:
    return [(a, b, 1) for a in range(count) for b in range(a + 1, count)]


def _dgx1(name: str, quad: Mapping[tuple[int, int], int], across: Sequence[int], gb_per_s: float) -> Topology:
    """Return two groups of four GPUs, with NVLinks per pair as in ``quad``, and ``across`` from GPU i to GPU i + 4."""
    pairs = [(first + a, first + b, links) for first in (0, 4) for (a, b), links in quad.items()]
    pairs += [(a, a + 4, links) for a, links in enumerate(across)]
    return _direct(name, 8, pairs, gb_per_s=gb_per_s)


def _switched(name: str, count: int, gb_per_s: float) -> Topology:
    """Return devices on one NVSwitch fabric, which is never a bottleneck beyond their ports."""
    builder = _start(name, count)
    _attach(builder, "nvswitch", range(count), gb_per_s)
    return builder.build()


def _attach(builder: TopologyBuilder, switch: str, numbers: Iterable[int], gb_per_s: float) -> None:
    builder.switch(switch)
    for number in numbers:
        builder.link(_gpu(number), switch, gb_per_s=gb_per_s, alpha_us=rates.ALPHA_NVSWITCH_PORT_US, kind="nvlink")


def _two_sockets(name: str, *, pcie: float, between: float, pairs: Sequence[tuple[int, int, int]] = ()) -> Topology:
    """Return eight devices, four on each of two sockets, and NVLinks of 25 GB/s between some pairs."""
    builder = _start(name, 8).host("cpu0").host("cpu1")
    for number in range(8):
        builder.link(_gpu(number), f"cpu{number // 4}", gb_per_s=pcie, alpha_us=rates.ALPHA_PCIE_US, kind="pcie")
    builder.link("cpu0", "cpu1", gb_per_s=between, alpha_us=rates.ALPHA_BETWEEN_SOCKETS_US, kind="sys")
    _join(builder, pairs, gb_per_s=25, kind="nvlink")
    return builder.build()


def _add_rails(builder: TopologyBuilder, hosts: int, per_host: int, gb_per_s: float) -> None:
    """Give every device a NIC, and join the NICs of one position in their hosts by a switch, their rail."""
    for rail in range(per_host if hosts > 1 else 0):
        builder.switch(f"rail{rail}")
        for host in range(hosts):
            device, nic = _gpu(host * per_host + rail), f"host{host}.nic{rail}"
            builder.nic(nic).link(device, nic, gb_per_s=gb_per_s, alpha_us=rates.ALPHA_NIC_US, kind="pcie")
            builder.link(nic, f"rail{rail}", gb_per_s=gb_per_s, alpha_us=rates.ALPHA_NET_US, kind="net")


def _nvswitch_hosts(name: str, hosts: int, *, port: float, rail: float) -> Topology:
    builder = _start(name, 8 * hosts)
    for host in range(hosts):
        _attach(builder, f"host{host}.nvswitch", range(8 * host, 8 * host + 8), port)
    _add_rails(builder, hosts, 8, rail)
    return builder.build()


def _mi250_hosts(name: str, hosts: int) -> Topology:
    builder = _start(name, 16 * hosts)
    pairs = [(int(a), int(b), int(links)) for a, b, links in (re.split("[-:]", word) for word in _MI250.split())]
    for host in range(hosts):
        _join(builder, pairs, gb_per_s=50, kind="xgmi", first=16 * host)
    _add_rails(builder, hosts, 16, 16)
    return builder.build()


_MACHINES: dict[str, Callable[[], Topology]] = {
    "dgx1_p100": lambda: _dgx1("dgx1_p100", dict.fromkeys(_QUAD, 1), (1, 1, 1, 1), 20),
    "dgx1_v100": lambda: _dgx1("dgx1_v100", _V100_QUAD, (2, 2, 1, 1), 25),
    "p3_8xlarge": lambda: _direct("p3_8xlarge", 4, [(*ends, n) for ends, n in _V100_QUAD.items()], gb_per_s=25),
    "dgx2": lambda: _switched("dgx2", 16, 150),
    "dgx_a100": lambda: _switched("dgx_a100", 8, 300),
    "dgx_h100": lambda: _switched("dgx_h100", 8, 450),
    "dgx_b200": lambda: _switched("dgx_b200", 8, 900),
    "mi250": lambda: _mi250_hosts("mi250", 1),
    "mi300x": lambda: _direct("mi300x", 8, _mesh(8), gb_per_s=48, kind="xgmi"),
    "mi300x_raw": lambda: _direct("mi300x_raw", 8, _mesh(8), gb_per_s=64, kind="xgmi"),
    "pcie3_8gpu": lambda: _two_sockets("pcie3_8gpu", pcie=12, between=10),
    "a100_pcie_8gpu": lambda: _two_sockets("a100_pcie_8gpu", pcie=24, between=16, pairs=_BRIDGES),
}
_SHAPES = {"ring": _ring, "line": _line, "mesh": _mesh}
_CLUSTERS: dict[str, Callable[[str, int], Topology]] = {
    "8_a100": lambda name, hosts: _nvswitch_hosts(name, hosts, port=300, rail=25),
    "8_h100": lambda name, hosts: _nvswitch_hosts(name, hosts, port=450, rail=50),
    "16_mi250": _mi250_hosts,
}


def with_nvlinks(topology: Topology, name: str) -> Topology:
    """Return a machine with the NVLinks of the known machine ``name`` added to its own links, and nothing missing.

    GPU i of one machine is GPU i of the other. If the GPUs of the known machine share an NVSwitch, ``topology`` may
    have fewer of them. If NVLinks join them directly, it must have as many. The NVLinks have the bandwidth that NCCL
    plans with, as in an NCCL file. This is less than that of ``known_topology(name)``, which is on the data sheet.

    Raises:
        TopologyError: no known machine with NVLinks has this name, or it has too few or other GPUs; or the topology
            has NVLinks or xGMI links of its own, or devices that are no GPUs.

    >>> laid = with_nvlinks(known_topology("pcie3_8gpu"), "dgx_a100")
    >>> laid.capacity("gpu:0", "nvswitch") / 10**9
    Fraction(240, 1)
    """
    _check(topology, name)
    lender = known_topology(name)
    names = dict(zip(lender.devices, topology.devices, strict=False))
    nodes = topology.nodes
    if _SWITCH in lender.kinds:
        names[_SWITCH] = _SWITCH
        nodes = (*nodes, Node(_SWITCH, "switch"))
    # By way of the decimal, so that 20.6 GB/s are 20,600,000,000 bytes per second, and sums of links stay exact.
    each = Fraction(str(rates.nvlink_gb_per_s(_CAPABILITIES[name]))) * _GIGA
    links = tuple(
        Link(names[link.source], names[link.target], link.kind, float(_count(link, name) * each), link.alpha_s)
        for link in _nvlinks(lender)
        if link.source in names and link.target in names
    )
    note = f"The NVLinks are those of {name}, at what NCCL takes for them."
    if _SWITCH not in names:
        note += f" They join the GPUs in the order of {name}: compare with `nvidia-smi topo -m`."
    return replace(topology, nodes=nodes, links=(*links, *topology.links), notes=(*topology.notes, note), missing=None)


def fitting_nvlinks(topology: Topology) -> tuple[str, ...]:
    """Return the names that ``with_nvlinks`` accepts for this machine."""
    fitting = []
    for name in _CAPABILITIES:
        try:
            _check(topology, name)
        except TopologyError:
            continue
        fitting.append(name)
    return tuple(fitting)


def _check(topology: Topology, name: str) -> None:
    if name not in _CAPABILITIES:
        raise TopologyError.unknown_nvlinks(name, list(_CAPABILITIES))
    strangers = [device for device in topology.devices if device_type(device) != "gpu"]
    if strangers:
        raise TopologyError(
            f"NVLinks join GPUs, and this topology has {some(strangers)}. Give a topology of GPUs only."
        )
    own = next((link.kind for link in topology.links if link.kind in LINK_NOUNS), None)
    if own is not None:
        raise TopologyError(
            f"This topology has {LINK_NOUNS[own]} of its own, and a known machine's NVLinks would be added to them. "
            "Plan it without these, or remove its own."
        )
    lender = known_topology(name)
    there, here = len(lender.devices), len(topology.devices)
    is_switched = _SWITCH in lender.kinds
    if here > there or (here < there and not is_switched):
        raise TopologyError.nvlinks_of_so_many(name, there, here, is_switched=is_switched)
    of_a_gpu = max(sum(_count(link, name) for link in _nvlinks(lender) if link.source == gpu) for gpu in lender.devices)
    for model in map(model_named, topology.missing.gpus if topology.missing is not None else ()):
        # Tens of a capability are its generation: a B300 (103) has a B200's (100) NVLinks.
        if model and (model.capability // 10 != _CAPABILITIES[name] // 10 or of_a_gpu > model.links):
            raise TopologyError(
                f"The GPUs of this topology are {model.name}, which do not have the NVLinks of {name}. Name a machine "
                "of such GPUs, or write their NVLinks into the plain JSON form."
            )


def _nvlinks(lender: Topology) -> list[Link]:
    return [link for link in lender.links if link.kind == "nvlink"]


def _count(link: Link, name: str) -> Fraction:
    """Return how many NVLinks of the known machine ``name`` make up a link."""
    return Fraction(link.bytes_per_s) / (Fraction(rates.nvlink_raw_gb_per_s(_CAPABILITIES[name])) * _GIGA)
