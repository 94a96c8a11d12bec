"""Compares the methods of one machine by predicted times, and makes the table of sizes with reasons."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from treefold.plan import Movement
from treefold.planners.method import Method, one_array
from treefold.topology.cost.routes import Alternatives, is_as_good
from treefold.topology.cost.simulation import MovementTimes
from treefold.topology.graph import Topology
from treefold.topology.planning.registry import DIRECT, METHODS, PLAN, RINGS, TABLE, MachineMethods, entry_of

MOST_SIMULATED = 16  # Devices of a machine that is simulated chunk by chunk; larger ones use the closed form.
_NEAR = 2.0  # Methods that the closed form puts within this factor of the best are simulated.
_MOST_DIRECT = 64  # Devices; each owns a slice, which costs 2·(n − 1) copies.
_PACKS = 8  # Trees of equal share that are compared beside the full packing.
SMALLEST, LARGEST = 2**12, 2**28  # Bytes between which methods are compared; outside, the choice stays the same.
_FINENESS = 2.0**0.5  # Borders between methods are found to this factor of size.
_UNITS = {"G": 2**30, "M": 2**20, "k": 2**10}


class Comparison:
    """The predicted times of one machine's methods. Each method is planned once, and simulated once per size.

    Rings share no capacity, so their price is a closed form and needs no plan.
    """

    def __init__(self, topology: Topology) -> None:
        """Remember the machine; nothing is planned yet."""
        self.methods = MachineMethods(topology)
        self.seconds: dict[int, Mapping[str, float]] = {}  # of all that was compared, by size and method
        self._topology = topology
        self._movements: dict[Method, Movement] = {}
        self._times: dict[str, MovementTimes] = {}
        self._alternatives = Alternatives(topology)

    @property
    def offers_direct(self) -> bool:
        """True if there are several hosts, and few enough devices for n² copies straight between hosts."""
        return len(self.methods.hosts) > 1 and len(self._topology.devices) <= _MOST_DIRECT

    def movement(self, name: str) -> Movement:
        """Return the movement that a method makes for one array on every device."""
        method = self.methods[name]
        if method not in self._movements:
            self._movements[method] = method.movement(one_array(self._topology.devices))
        return self._movements[method]

    def times(self, name: str) -> MovementTimes:
        """Return the times of a method. Methods that make the same movement, as some do on meshes, share them."""
        if name not in self._times:
            movement = self.movement(name)
            # Simulations cost more than comparing two movements, and equal movements take equally long.
            twins = (times for times in self._times.values() if times.movement == movement)
            self._times[name] = next(twins, None) or MovementTimes(movement, self._topology, self._alternatives)
        return self._times[name]

    def simulated_s(self, name: str, nbytes: int) -> float:
        """Return the simulated seconds of a method for ``nbytes`` bytes per device; rings have a closed form."""
        return self.methods.rings.predict_s(nbytes) if name == RINGS else self.times(name).simulated_s(nbytes)

    def near(self, names: Iterable[str], nbytes: int) -> list[str]:
        """Return the methods that may be the fastest, the likeliest first.

        The methods are compared in closed form, which is off by a third at most.
        """
        about = {name: self.times(name).predicted_s(nbytes) for name in names}
        return [name for name in sorted(about, key=about.__getitem__) if about[name] <= _NEAR * min(about.values())]

    def contenders(self, names: Iterable[str], nbytes: int) -> list[str]:
        """Return the near methods that may be as good as the fastest of them and of rings.

        A method is simulated only if its lower bound, the time of its busiest link, is not above the least time so far.
        """
        found: list[str] = []
        least = self.simulated_s(RINGS, nbytes)
        for name in self.near(names, nbytes):
            if is_as_good(self.times(name).least_s(nbytes), least):
                found.append(name)
                least = min(least, self.simulated_s(name, nbytes))
        return found

    def best(self, nbytes: int) -> str:
        """Return the fastest method; of equally good ones, the first."""
        if nbytes not in self.seconds:
            self.seconds[nbytes] = self._compared(nbytes)
        times = self.seconds[nbytes]
        # The simplest first, and rings last: within 1 % the model cannot tell which is faster.
        return next(
            name for name in (*self._names, RINGS) if is_as_good(times.get(name, float("inf")), min(times.values()))
        )

    def _compared(self, nbytes: int) -> Mapping[str, float]:
        if len(self._topology.devices) <= MOST_SIMULATED:
            found = {name: self.simulated_s(name, nbytes) for name in self.near(self._names, nbytes)}
        else:
            found = {name: self.times(name).predicted_s(nbytes) for name in self._names}
        return found | {RINGS: self.methods.rings.predict_s(nbytes)}

    def names(self, *uses: str) -> list[str]:
        """Return the machine's methods of these uses by name, the simplest first."""
        offered = (name for name, entry in METHODS.items() if entry.use in uses)
        return [
            self.methods.shallow if name == "shallow" else name
            for name in offered
            if name != DIRECT or self.offers_direct
        ]

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        """The methods besides rings that a table of sizes may name; those with a depth or a number of trees last."""
        names = [*self.names(PLAN, TABLE), f"trees#{_PACKS}"]
        return tuple(sorted(names, key=lambda name: "#" in name))


@dataclass(frozen=True, slots=True)
class SizeRow:
    """The ``method`` for sizes of at most ``up_to_bytes`` and above those of the row before."""

    method: str
    up_to_bytes: float


@dataclass(frozen=True, slots=True)
class SizeTable:
    """Rows of growing sizes, the last of them infinite, and a sentence for each.

    The text resembles the specs of TensorFlow's benchmarks. ``oneshot:32k:twoshot:1M:trees#8:inf`` means one shot up to
    32 KiB, two shots up to 1 MiB, and eight trees beyond.
    """

    rows: tuple[SizeRow, ...]
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        """Return the methods and sizes in one line."""
        return ":".join(f"{row.method}:{size_text(row.up_to_bytes)}" for row in self.rows)


def choose(comparison: Comparison) -> SizeTable:
    """Return the fastest method for every size from 4 KiB on, between one replica on each device of a machine.

    Compared are one shot, two shots, a star, one tree at a centre, trees of least depth, eight trees, the full packing
    and rings. Between several hosts a direct plan with an owner per slice is compared, too, and chosen if no other is
    better. Up to 16 devices the best methods are simulated. Above, all are priced in closed form, as rings always are.

    Raises:
        MissingExtraError: SciPy is not installed.

    """
    if len(comparison.methods.topology.devices) == 1:
        return SizeTable((SizeRow("star", math.inf),), ("There is one device: nothing travels.",))
    sizes = [SMALLEST * 4**power for power in range(round(math.log(LARGEST / SMALLEST, 4)) + 1)]
    borders = list[tuple[float, str]]()
    # Which method is the best changes between sizes slowly: where two neighbours agree, nothing is asked in between.
    for low, high in zip([SMALLEST, *sizes], sizes, strict=False):
        # Sizes are a factor of 4 apart. If one method wins at two neighbouring sizes, another one that wins only
        # between them is not found.
        borders += [*_borders(comparison, low, high), (high, comparison.best(high))]
    rows = joined_rows(borders)
    return SizeTable(rows, tuple(_reasons(comparison, rows)))


def joined_rows(borders: Sequence[tuple[float, str]]) -> tuple[SizeRow, ...]:
    """Return rows of (size, method) by growing size. Neighbours of one method are joined; the last row is infinite."""
    rows: list[SizeRow] = []
    for size, method in borders:
        if rows and rows[-1].method == method:
            rows.pop()
        rows.append(SizeRow(method, size))
    return (*rows[:-1], SizeRow(rows[-1].method, math.inf))


def _borders(comparison: Comparison, low: int, high: int) -> list[tuple[float, str]]:
    """Return (size, method) between two sizes: the largest size at which each method but the last is the fastest.

    The interval is halved on a logarithmic scale until one method is best at both ends, or the ends are close.
    """
    if comparison.best(low) == comparison.best(high):
        return []
    # Whole KiB, so that the table can print the border exactly as it holds.
    middle = round(math.sqrt(low * high) / 1024) * 1024
    if high <= low * _FINENESS or not low < middle < high:
        return [(float(low), comparison.best(low))]
    return [*_borders(comparison, low, middle), *_borders(comparison, middle, high)]


def _reasons(comparison: Comparison, rows: Sequence[SizeRow]) -> list[str]:
    """Return a sentence per row: the method's strength, and its lead at the row's upper end."""
    sentences, low = [], 0.0
    for row in rows:
        # Only sizes that were compared have prices; the largest of the row is its upper end, or next to it.
        size = max(size for size in comparison.seconds if low < size <= row.up_to_bytes)
        mine = comparison.seconds[size][row.method]
        others = sorted((seconds, name) for name, seconds in comparison.seconds[size].items() if name != row.method)
        sizes = f"Above {size_text(low)}B" if row.up_to_bytes == math.inf else f"Up to {size_text(row.up_to_bytes)}B"
        text = f"{sizes}: {row.method}, {entry_of(row.method).reason}; "
        text += f"{mine * 1e6:.4g} µs at {size_text(size)}B"
        sentences.append(f"{text}, {others[0][1]} {others[0][0] * 1e6:.4g} µs." if others else f"{text}.")
        low = row.up_to_bytes
    return sentences


def size_text(nbytes: float) -> str:
    """Return bytes in the notation of a table, exactly; k, M and G are powers of 1024.

    >>> size_text(49152), size_text(1000), size_text(math.inf)
    ('48k', '1000', 'inf')
    """
    if nbytes == math.inf:
        return "inf"
    for unit, factor in _UNITS.items():
        if nbytes >= factor and nbytes % factor == 0:
            return f"{nbytes / factor:.0f}{unit}"
    return f"{nbytes:.0f}"
