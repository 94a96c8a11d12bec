"""The methods of one machine compared by what they are predicted to take."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from treefold.plan import Movement
from treefold.planners.method import Method, one_array
from treefold.topology.cost.model import is_as_good
from treefold.topology.cost.routes import Alternatives
from treefold.topology.cost.simulation import MovementTimes
from treefold.topology.graph import Topology
from treefold.topology.planning.registry import MachineMethods

DIRECT, RINGS = "direct", "rings"
MOST_SIMULATED = 16  # devices of machines whose every chunk is followed; beyond, the closed form must do
_NEAR = 2.0  # methods that the closed form puts within this factor of the best are simulated
_MOST_DIRECT = 64  # devices: each owns a slice, which costs 2·(n − 1) copies
_PACKS = 8  # trees of an equal share that are compared beside the full packing


class Comparison:
    """What the methods of one machine take: each is planned once, and each movement is simulated once per size.

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
        """Whether values can go straight between hosts: there are several, and not too many devices for n² copies."""
        return len(self.methods.hosts) > 1 and len(self._topology.devices) <= _MOST_DIRECT

    def movement(self, name: str) -> Movement:
        """Return a method's movement of one array on every device."""
        method = self.methods[name]
        if method not in self._movements:
            self._movements[method] = method.movement(one_array(self._topology.devices))
        return self._movements[method]

    def times(self, name: str) -> MovementTimes:
        """Return what a method takes; on meshes and switches several methods are the same movement."""
        if name not in self._times:
            movement = self.movement(name)
            # Simulations cost more than comparing two movements, and equal movements take equally long.
            twins = (times for times in self._times.values() if times.movement == movement)
            self._times[name] = next(twins, None) or MovementTimes(movement, self._topology, self._alternatives)
        return self._times[name]

    def simulated_s(self, name: str, nbytes: int) -> float:
        """Return what a method takes for ``nbytes`` bytes per device."""
        return self.methods.rings.predict_s(nbytes) if name == RINGS else self.times(name).simulated_s(nbytes)

    def near(self, names: Iterable[str], nbytes: int) -> list[str]:
        """Return the methods that may be the fastest, the likeliest first.

        By the closed form, which is off by a third at most.
        """
        about = {name: self.times(name).predicted_s(nbytes) for name in names}
        return [name for name in sorted(about, key=about.__getitem__) if about[name] <= _NEAR * min(about.values())]

    def contenders(self, names: Iterable[str], nbytes: int) -> list[str]:
        """Return those near methods that may be as good as the fastest of them and of rings.

        They are simulated. One whose busiest link alone takes longer than another method cannot win, and is not.
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

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        """The methods that a table of sizes may name besides rings, the simplest first."""
        between_hosts = (DIRECT,) if self.offers_direct else ()
        return (*between_hosts, "oneshot", "twoshot", "star", "tree", "trees", self.methods.shallow, f"trees#{_PACKS}")
