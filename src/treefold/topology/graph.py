"""A machine as a graph: devices, and the links, hosts, switches and NICs that carry values between them.

Devices store and combine. Hosts (a socket and its memory), switches and NICs only forward, as fast as their links
allow. A route from one device to another never passes a third. If a third device has to help, the plan copies to it and
from it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self, TypeGuard, TypeVar

from treefold.devices import canonical_device
from treefold.errors import DeviceError, TopologyError
from treefold.errors.words import counted, printable, short, some
from treefold.keyed import grouped
from treefold.plan.movement import drawn
from treefold.topology.gpus import MissingLinks

KINDS = ("device", "host", "switch", "nic")
_GIGA, _MICRO = 10**9, Fraction(1, 10**6)
#: From a byte per second to more than any machine has. Numbers outside are typing errors, and make solvers fail.
LEAST_GB_PER_S, MOST_GB_PER_S = 1e-9, 1e9
#: The widest link of a machine over its narrowest: a modem beside NVLinks is 10⁷. Above, solvers fail.
_MOST_RATIO = 10**7
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Node:
    """A vertex: ``kind`` is ``"device"``, ``"host"``, ``"switch"`` or ``"nic"``."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Link:
    """A directed connection from one node to another.

    Attributes:
        kind: ``"nvlink"``, ``"xgmi"``, ``"pcie"``, ``"net"`` …, or empty.
        bytes_per_s: A whole number of bytes per second is exact as a float, so ``Fraction(link.bytes_per_s)`` is exact.
        alpha_s: Seconds before the first byte arrives.

    """

    source: str
    target: str
    kind: str
    bytes_per_s: float
    alpha_s: float


@dataclass(frozen=True)
class Topology:
    """A machine. Immutable; made by ``TopologyBuilder``, ``known_topology`` or ``load_topology``.

    Links of one kind between the same ends are one link of their summed bandwidth; ``capacity`` also sums over kinds.
    Nodes and links keep the order in which they were first mentioned. Characters of ``name`` and ``notes`` that cannot
    be printed on a terminal are escaped.

    Attributes:
        name: The name for headlines; may be empty.
        nodes: Devices, hosts, switches and NICs.
        links: Directed links, with bytes per second and seconds of latency.
        notes: Sentences for the reader, such as what a file left open.
        missing: Links that the machine has and ``links`` lacks. None if none are known to be missing.

    Raises:
        TopologyError: no devices, a name twice, a link to nowhere or to itself, a bandwidth below 1e-9 or above 1e9
            GB/s, links of which one is more than 10⁷ times as wide as another, a latency that is not finite and ≥ 0,
            devices that do not all reach each other, or a control character in the name of a node or the kind of a
            link.

    >>> ring = TopologyBuilder("ring").device("gpu:0").device("gpu:1").link("gpu:0", "gpu:1", gb_per_s=25).build()
    >>> ring.devices, ring.capacity("gpu:1", "gpu:0")
    (('gpu:0', 'gpu:1'), Fraction(25000000000, 1))
    """

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    notes: tuple[str, ...] = ()
    missing: MissingLinks | None = None

    def __reduce__(self) -> tuple[type[Topology], tuple[Any, ...]]:
        """Copy and pickle the fields; what was derived from them is derived again."""
        # Without this the cached properties would travel too, and a mappingproxy cannot be pickled.
        return type(self), tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def __post_init__(self) -> None:
        """Merge parallel links, and refuse a machine that cannot be."""
        object.__setattr__(self, "name", printable(self.name))
        object.__setattr__(self, "notes", tuple(map(printable, self.notes)))
        _check_nodes(self.nodes)
        names = {node.name for node in self.nodes}
        for link in self.links:
            _check_link(link, names)
        object.__setattr__(self, "links", _merged(self.links))
        if not self.devices:
            raise TopologyError(
                "This topology has no devices. It needs at least one; hosts, switches and NICs only carry."
            )
        _check_connected(self)
        _check_ratio(self.links)

    def __repr__(self) -> str:
        """Return a line that says what there is; ``to_json`` has all of it."""
        kinds = [(sum(node.kind == kind for node in self.nodes), kind.replace("nic", "NIC")) for kind in KINDS]
        nodes = ", ".join(counted(number, kind, "switches" * (kind == "switch")) for number, kind in kinds if number)
        return f"<Topology {self.name!r}: {nodes}, {counted(len(self.links), 'directed link')}>"

    def _repr_html_(self) -> str | None:
        """Return the drawing that notebooks show."""
        return drawn("machine", self)

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The canonical names of the devices."""
        return tuple(node.name for node in self.nodes if node.kind == "device")

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """The kind of every node, by name."""
        return MappingProxyType({node.name: node.kind for node in self.nodes})

    @cached_property
    def capacities(self) -> Mapping[tuple[str, str], Fraction]:
        """Bytes per second, exact, of every pair of nodes that a link joins in this direction."""
        return MappingProxyType({ends: _width(links) for ends, links in self._between.items()})

    @cached_property
    def bytes_per_s(self) -> Mapping[tuple[str, str], float]:
        """``capacities`` as floats, for prices: arithmetic on fractions is slow."""
        return MappingProxyType({ends: float(width) for ends, width in self.capacities.items()})

    @cached_property
    def alphas(self) -> Mapping[tuple[str, str], float]:
        """Seconds of latency of the pairs in ``capacities``; of several links, those of the fastest."""
        return MappingProxyType({ends: min(link.alpha_s for link in links) for ends, links in self._between.items()})

    @cached_property
    def _between(self) -> Mapping[tuple[str, str], Sequence[Link]]:
        return grouped(((link.source, link.target), link) for link in self.links)

    @cached_property
    def _neighbours(self) -> Mapping[str, tuple[str, ...]]:
        found = grouped(self.capacities)
        return {node.name: tuple(found.get(node.name, ())) for node in self.nodes}

    @property
    def is_symmetric(self) -> bool:
        """True if every link is as wide in the opposite direction."""
        return all(self.capacity(target, source) == width for (source, target), width in self.capacities.items())

    def neighbours(self, name: str) -> tuple[str, ...]:
        """Return the nodes to which a link leads from ``name``."""
        return self._neighbours[name]

    def capacity(self, source: str, target: str) -> Fraction:
        """Return the exact bytes per second over all links from ``source`` to ``target``, or 0 if there is none.

        Args:
            source: name of the node that sends.
            target: name of the node that receives.

        Returns:
            A fraction of bytes per second.

        """
        return self.capacities.get((source, target), Fraction(0))

    def restricted(self, devices: Iterable[str]) -> Topology:
        """Return the machine with these devices only, in this order. Links of other devices are removed.

        Raises:
            TopologyError: a device that is not here or named twice, none, or devices that do not reach each other now.

        """
        wanted = [canonical_device(device) for device in devices]
        strangers = [device for device in wanted if self.kinds.get(device) != "device"]
        if strangers:
            raise TopologyError.strangers(strangers, self.devices)
        gone = set(self.devices) - set(wanted)
        carriers = [node for node in self.nodes if node.kind != "device"]
        links = [link for link in self.links if link.source not in gone and link.target not in gone]
        nodes = (*(Node(device, "device") for device in wanted), *carriers)
        return replace(self, nodes=nodes, links=tuple(links))

    def to_json(self) -> dict[str, Any]:
        """Return the plain form that ``load_topology`` reads, ready for ``json.dumps``.

        Each of ``links`` has ``between``, ``gb_per_s`` (10⁹ bytes per second), ``alpha_us`` (microseconds) and, where
        known, ``kind``. If the directions differ, a number is a pair ``[there, back]``, in which ``null`` stands for a
        missing direction. Keys without content are left out: ``name``, ``hosts``, ``nics``, ``notes`` and ``missing``
        (``{"links": kind, "gpus": models}``).
        """
        of_kind = {kind: [node.name for node in self.nodes if node.kind == kind] for kind in KINDS}
        plain: dict[str, Any] = {"name": self.name, "devices": of_kind["device"], "switches": of_kind["switch"]}
        plain |= {"hosts": of_kind["host"], "nics": of_kind["nic"]}
        plain |= {"links": _plain_links(self.links), "notes": list(self.notes)}
        if self.missing is not None:
            plain["missing"] = {"links": self.missing.kind, "gpus": list(self.missing.gpus)}
        return {key: value for key, value in plain.items() if value or key in {"devices", "switches", "links"}}


class TopologyBuilder:
    """Collects nodes and links; every method but ``build`` returns the builder.

    Device names may have any spelling that ``treefold`` accepts (``"cuda:1"``); other names are free.

    Raises:
        TopologyError: a second node of one name.
        DeviceError: a device whose name is none.

    """

    def __init__(self, name: str = "") -> None:
        """Start with no nodes and no links."""
        self.name = name
        self._kinds: dict[str, str] = {}
        self._links: list[Link] = []
        self._notes: list[str] = []
        self._missing: MissingLinks | None = None

    def __contains__(self, name: str) -> bool:
        """Tell whether there is a node of this name, in the spelling with which it was added."""
        return name in self._kinds

    def device(self, name: str) -> Self:
        """Add a device."""
        return self._node(canonical_device(name), "device")

    def host(self, name: str) -> Self:
        """Add a host or one of its sockets, which forwards and does not combine."""
        return self._node(name, "host")

    def switch(self, name: str) -> Self:
        """Add a switch, which forwards as much as its links carry."""
        return self._node(name, "switch")

    def nic(self, name: str) -> Self:
        """Add a NIC."""
        return self._node(name, "nic")

    def link(
        self,
        a: str,
        b: str,
        *,
        gb_per_s: float,
        back_gb_per_s: float | None = None,
        alpha_us: float = 0.0,
        kind: str = "",
        one_way: bool = False,
    ) -> Self:
        """Join two nodes by a link in each direction. A second link between the same ends adds to the first.

        Args:
            a: name of one end.
            b: name of the other end.
            gb_per_s: 10⁹ bytes per second, as an exact decimal fraction: 20.6 means 20 600 000 000 bytes per second.
            back_gb_per_s: the same from ``b`` to ``a``; ``gb_per_s`` by default.
            alpha_us: latency in microseconds, in each direction.
            kind: the kind of link, such as ``"nvlink"``.
            one_way: True adds no link from ``b`` to ``a``.

        Returns:
            The builder.

        Raises:
            TopologyError: an end that is not there, a number that no link has.

        """
        source, target = self._end(a, a, b), self._end(b, a, b)
        back = gb_per_s if back_gb_per_s is None else back_gb_per_s
        for start, stop, width in [(source, target, gb_per_s), (target, source, back)][: 1 if one_way else 2]:
            if not is_finite(width) or not LEAST_GB_PER_S <= width <= MOST_GB_PER_S:
                raise TopologyError.bandwidth(start, stop, width)
            if not is_finite(alpha_us) or alpha_us < 0:
                raise TopologyError.alpha(start, stop, alpha_us)
            bytes_per_s = float(_decimal(width) * _GIGA)
            self._links.append(Link(start, stop, kind, bytes_per_s, float(_decimal(alpha_us) * _MICRO)))
        return self

    def note(self, sentence: str) -> Self:
        """Add a sentence for the reader."""
        self._notes.append(sentence)
        return self

    def missing(self, links: MissingLinks | None) -> Self:
        """Record the links that the machine has and that are not added here."""
        self._missing = links
        return self

    def build(self) -> Topology:
        """Return the machine.

        Raises:
            TopologyError: see ``Topology``.

        """
        nodes = tuple(Node(name, kind) for name, kind in self._kinds.items())
        return Topology(self.name, nodes, tuple(self._links), tuple(self._notes), self._missing)

    def _node(self, name: str, kind: str) -> Self:
        if name in self._kinds:
            raise TopologyError.named_twice(kind, name)
        self._kinds[name] = kind
        return self

    def _end(self, name: str, a: str, b: str) -> str:
        if name in self._kinds:
            return name
        try:
            device = canonical_device(name)
        except DeviceError:
            device = ""
        if device not in self._kinds:
            raise TopologyError.to_nowhere(a, b, name)
        return device


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether this is a number and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: object) -> bool:
    """Tell whether this is a finite number and not a bool."""
    return is_number(value) and math.isfinite(value)


def _decimal(number: float) -> Fraction:
    """Return the shortest decimal that a float stands for: 0.1 is a tenth, not the float next to it."""
    return Fraction(repr(number))


def _check_nodes(nodes: Sequence[Node]) -> None:
    seen = set()
    for node in nodes:
        if node.kind not in KINDS:
            raise TopologyError.kind(node.name, node.kind, KINDS)
        if node.name in seen:
            raise TopologyError.named_twice(node.kind, node.name)
        if not node.name.isprintable():
            raise TopologyError(
                f"A {node.kind} is named {short(node.name)}. Names are printed and drawn: use printable characters "
                "only."
            )
        if node.kind == "device" and canonical_device(node.name) != node.name:
            raise DeviceError.unparsable(node.name)
        seen.add(node.name)


def _check_link(link: Link, names: set[str]) -> None:
    for end in (link.source, link.target):
        if end not in names:
            raise TopologyError.to_nowhere(link.source, link.target, end)
    if link.source == link.target:
        raise TopologyError(f"There is a link from {link.source!r} to itself. A link joins two nodes; leave it out.")
    if not link.kind.isprintable():
        raise TopologyError(
            f"The link from {link.source!r} to {link.target!r} is of kind {short(link.kind)}. Kinds are printed and "
            "drawn: use printable characters only."
        )
    gb_per_s = link.bytes_per_s / _GIGA
    if not is_finite(gb_per_s) or not LEAST_GB_PER_S <= gb_per_s <= MOST_GB_PER_S:
        raise TopologyError.bandwidth(link.source, link.target, gb_per_s)
    if not is_finite(link.alpha_s) or link.alpha_s < 0:
        raise TopologyError.alpha(link.source, link.target, link.alpha_s * 10**6)


def _check_ratio(links: Sequence[Link]) -> None:
    """Refuse a machine if its widest link is wider, relative to its narrowest, than on any real machine."""
    narrow, wide = (which(links, key=lambda link: link.bytes_per_s, default=None) for which in (min, max))
    if narrow is not None and wide is not None and wide.bytes_per_s > _MOST_RATIO * narrow.bytes_per_s:
        ends = ((link.source, link.target, link.bytes_per_s / _GIGA) for link in (narrow, wide))
        raise TopologyError.ratio(*ends)


def _merged(links: Iterable[Link]) -> tuple[Link, ...]:
    """Add up the links of one kind between the same ends."""
    found = grouped(((link.source, link.target, link.kind), link) for link in links)
    return tuple(Link(*key, float(_width(links)), min(link.alpha_s for link in links)) for key, links in found.items())


def _width(links: Iterable[Link]) -> Fraction:
    """Return the exact bytes per second of parallel links together."""
    return sum((Fraction(link.bytes_per_s) for link in links), Fraction(0))


def _check_connected(topology: Topology) -> None:
    """Refuse devices that do not all reach each other. Trees may pass devices, so a path may, too."""
    back = grouped((target, source) for source, target in topology.capacities)
    start = topology.devices[:1]
    there, here = reached_from(start, topology.neighbours), reached_from(start, lambda name: back.get(name, ()))
    for reached, is_there in ((there, True), (here, False)):
        part = [device for device in topology.devices if device in reached]
        rest = [device for device in topology.devices if device not in reached]
        if rest:
            near, far = (part, rest) if is_there else (rest, part)
            raise TopologyError(
                f"The machine is not connected: nothing leads from {some(near)} to {some(far)}. Add the links between "
                "them, or plan for one part."
            )


def reached_from(starts: Iterable[T], neighbours: Callable[[T], Iterable[T]]) -> set[T]:
    """Return the starts, and all nodes that can be reached from one of them."""
    todo = list(starts)
    reached = set(todo)
    while todo:
        fresh = set(neighbours(todo.pop())) - reached
        reached |= fresh
        todo += fresh
    return reached


def joined_groups(names: Iterable[T], neighbours: Callable[[T], Iterable[T]]) -> list[list[T]]:
    """Return groups of names that reach each other, in order of first mention; ``neighbours`` must be symmetric."""
    left, groups = list(names), list[list[T]]()
    while left:
        reached = reached_from(left[:1], neighbours)
        groups.append([name for name in left if name in reached])
        left = [name for name in left if name not in reached]
    return groups


def _plain_links(links: Sequence[Link]) -> list[dict[str, Any]]:
    by_ends = {(link.source, link.target, link.kind): link for link in links}
    plain: list[dict[str, Any]] = []
    while by_ends:
        (source, target, kind), there = next(iter(by_ends.items()))
        del by_ends[source, target, kind]
        back = by_ends.pop((target, source, kind), None)
        item: dict[str, Any] = {"between": [source, target]}
        widths = [None if link is None else float(Fraction(link.bytes_per_s) / _GIGA) for link in (there, back)]
        alphas = [None if link is None else float(_decimal(link.alpha_s) / _MICRO) for link in (there, back)]
        item["gb_per_s"] = widths[0] if widths[0] == widths[1] else widths
        item["alpha_us"] = alphas[0] if alphas[0] == alphas[1] or back is None else alphas
        if kind:
            item["kind"] = kind
        plain.append(item)
    return plain
