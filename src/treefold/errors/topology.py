"""Machines that cannot be, names of machines that are not known, and what a planner of trees cannot do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Self

from treefold.errors.base import TreefoldError
from treefold.errors.words import counted, listed, short, some

_MOST_NEAR = 4  # names that begin alike


class TopologyError(TreefoldError, ValueError):
    """A machine that does not hold together, a number on it that cannot be, or a name that is not known."""

    @classmethod
    def of_ranks(cls, devices: int, ranks: int, hosts: int) -> Self:
        """A cluster's topology does not fit the ranks of a group."""
        return cls(
            f"The topology has {devices} devices, and the group {ranks} ranks on {hosts} hosts. Give a device for each "
            "rank, or one for each host, in their order."
        )

    @classmethod
    def no_devices(cls) -> Self:
        return cls("This topology has no devices. It needs at least one; hosts, switches and NICs only carry.")

    @classmethod
    def named_twice(cls, kind: str, name: str) -> Self:
        return cls(f"The {kind} {name!r} is named twice. Every device, host, switch and NIC needs a name of its own.")

    @classmethod
    def unprintable_name(cls, kind: str, name: str) -> Self:
        """Refuse a name that a terminal would obey instead of show."""
        return cls(f"A {kind} is named {short(name)}. Names are printed and drawn: use printable characters only.")

    @classmethod
    def unprintable_kind(cls, source: str, target: str, kind: str) -> Self:
        """Refuse a kind of link that a terminal would obey instead of show."""
        return cls(
            f"The link from {source!r} to {target!r} is of kind {short(kind)}. Kinds are printed and drawn: use "
            f"printable characters only."
        )

    @classmethod
    def kind(cls, name: str, kind: object, kinds: Sequence[str]) -> Self:
        return cls(f"{name!r} is said to be of kind {short(kind)}. A node is {listed(kinds)}.")

    @classmethod
    def to_nowhere(cls, source: str, target: str, missing: str) -> Self:
        return cls(
            f"The link from {source!r} to {target!r} leads nowhere: there is no {missing!r}. Name the device, host, "
            f"switch or NIC before its links."
        )

    @classmethod
    def to_itself(cls, name: str) -> Self:
        return cls(f"There is a link from {name!r} to itself. A link joins two nodes; leave it out.")

    @classmethod
    def bandwidth(cls, source: str, target: str, gb_per_s: object) -> Self:
        return cls(
            f"The link from {source!r} to {target!r} has {short(gb_per_s)} GB/s. A bandwidth is a number from 1e-9 "
            f"to 1e9; leave out a link that carries nothing."
        )

    @classmethod
    def ratio(cls, narrow: tuple[str, str, float], wide: tuple[str, str, float]) -> Self:
        return cls(
            f"The link from {narrow[0]!r} to {narrow[1]!r} has {narrow[2]:g} GB/s and that from {wide[0]!r} to "
            f"{wide[1]!r} {wide[2]:g}. Links of one machine differ by a factor of 1e7 at most: check the units."
        )

    @classmethod
    def alpha(cls, source: str, target: str, alpha_us: object) -> Self:
        return cls(
            f"The link from {source!r} to {target!r} has a latency of {short(alpha_us)} µs. It is a finite number, "
            f"0 or more."
        )

    @classmethod
    def disconnected(cls, part: Sequence[str], rest: Sequence[str]) -> Self:
        return cls(
            f"The machine is not connected: nothing leads from {some(part)} to {some(rest)}. Add the links between "
            f"them, or plan for one part."
        )

    @classmethod
    def strangers(cls, devices: Sequence[str], known: Sequence[str]) -> Self:
        return cls(
            f"There is no {some(devices)} in this topology. It has {some(known)}: name some of these, once each."
        )

    @classmethod
    def count(cls, name: str, number: object) -> Self:
        return cls(f"optimal_packing got {name}={short(number)}. It takes a whole number above 0, or None for any.")

    @classmethod
    def too_deep(cls, max_depth: int, devices: Sequence[str]) -> Self:
        return cls(
            f"No tree that is {counted(max_depth, 'edge')} deep joins {some(devices)}. Allow a larger max_depth, or "
            f"None for any."
        )

    @classmethod
    def unknown_name(cls, name: object, names: Sequence[str]) -> Self:
        return cls(f"No machine is known as {short(name)}.{_nearest(name, names)} Known: {', '.join(names)}.")

    @classmethod
    def unknown_nvlinks(cls, name: object, names: Sequence[str]) -> Self:
        nearest = _nearest(name, names)
        return cls(f"No NVLinks are known of {short(name)}.{nearest} Known are those of {', '.join(names)}.")

    @classmethod
    def nvlinks_of_others(cls, devices: Sequence[str]) -> Self:
        return cls(f"NVLinks join GPUs, and this topology has {some(devices)}. Give a topology of GPUs only.")

    @classmethod
    def nvlinks_twice(cls, own: str) -> Self:
        return cls(
            f"This topology has {own} of its own, and a known machine's NVLinks would be added to them. Plan it "
            f"without these, or remove its own."
        )

    @classmethod
    def nvlinks_of_so_many(cls, name: str, there: int, here: int, *, is_switched: bool) -> Self:
        wanted = f"at most {there}" if is_switched else f"{there}"
        return cls(
            f"The NVLinks of {name} join {there} GPUs, and this topology has {here}. It takes {wanted}: name a machine "
            f"of as many GPUs."
        )

    @classmethod
    def nvlinks_of_another_gpu(cls, name: str, model: str) -> Self:
        return cls(
            f"The GPUs of this topology are {model}, which do not have the NVLinks of {name}. Name a machine of such "
            f"GPUs, or write their NVLinks into the plain JSON form."
        )


def _nearest(name: object, names: Sequence[str]) -> str:
    """Return a sentence with the names that begin as this one does, else with the nearest; empty where none is near."""
    if not isinstance(name, str):
        return ""
    bare = re.sub(r"[-_\s]", "", name.lower())
    begun = [other for other in names if bare and other.replace("_", "").startswith(bare)][:_MOST_NEAR]
    near = begun or difflib.get_close_matches(name.lower(), names, 1)
    if not near:
        return ""
    return f" The nearest {'is' if len(near) == 1 else 'are'} {', '.join(map(repr, near))}."
