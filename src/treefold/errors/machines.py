"""Errors of machines: their graphs, the files that describe them, and predicted times."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Self

from treefold.errors.base import TreefoldError
from treefold.errors.words import listed, printable, short, some

_MOST_NEAR = 4  # names that begin alike
_FORMATS = (
    "NCCL or RCCL topology XML, hwloc XML, the output of `nvidia-smi topo -m`, `rocm-smi --showtopo` or "
    "`amd-smi topology`, and the plain JSON form"
)
_MANY = 6  # names that a sentence lists
#: The allowed values of a simulation's numbers, as words of a message.
_ALLOWED = {
    "chunk_bytes": 'a finite number of bytes above 0, None for whole packs, or "auto"',
    "launch_s": "a finite number of seconds, 0 or more",
    "nbytes": "a finite number of bytes, 0 or more",
    "reduce_bytes_per_s": "a number above 0; infinity means that folding costs nothing",
}


class TopologyError(TreefoldError, ValueError):
    """An inconsistent machine, an impossible number on it, or an unknown name."""

    @classmethod
    def named_twice(cls, kind: str, name: str) -> Self:
        return cls(f"The {kind} {name!r} is named twice. Every device, host, switch and NIC needs a name of its own.")

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
    def strangers(cls, devices: Sequence[str], known: Sequence[str]) -> Self:
        return cls(
            f"There is no {some(devices)} in this topology. It has {some(known)}: name some of these, once each."
        )

    @classmethod
    def unknown_name(cls, name: object, names: Sequence[str]) -> Self:
        return cls(f"No machine is known as {short(name)}.{_nearest(name, names)} Known: {', '.join(names)}.")

    @classmethod
    def unknown_nvlinks(cls, name: object, names: Sequence[str]) -> Self:
        nearest = _nearest(name, names)
        return cls(f"No NVLinks are known of {short(name)}.{nearest} Known are those of {', '.join(names)}.")

    @classmethod
    def nvlinks_of_so_many(cls, name: str, there: int, here: int, *, is_switched: bool) -> Self:
        wanted = f"at most {there}" if is_switched else f"{there}"
        return cls(
            f"The NVLinks of {name} join {there} GPUs, and this topology has {here}. It takes {wanted}: name a machine "
            f"of as many GPUs."
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


class ParseError(TreefoldError, ValueError):
    """Text that does not describe a machine, or describes an inconsistent one."""

    @classmethod
    def no_file(cls, name: str) -> Self:
        return cls(f"There is no file {short(name)}, and it is no topology itself. Give a path, '-' or the text.")

    @classmethod
    def not_text(cls, value: object) -> Self:
        return cls(f"load_topology got {short(value)}. It takes a path, '-' for the standard input, or the text.")

    @classmethod
    def empty(cls) -> Self:
        return cls(f"The topology is empty. treefold reads {_FORMATS}.")

    @classmethod
    def too_much(cls, what: str, number: int, allowed: int) -> Self:
        return cls(f"The topology has {number} {what}; at most {allowed} are read. Cut it to one machine or cluster.")

    @classmethod
    def broken(cls, kind: str, problem: str) -> Self:
        return cls(f"The {kind} is broken or cut off: {problem}. Save the whole file and give that.")

    @classmethod
    def bad_field(cls, where: str, got: object, allowed: str) -> Self:
        return cls(f"{where} is {short(got)}. It must be {allowed}; correct it.")

    @classmethod
    def truncated(cls, tool: str, problem: str) -> Self:
        return cls(f"The table of {tool} is cut off: {printable(problem)}. Paste the whole output.")

    @classmethod
    def inconsistent(cls, tool: str, problem: str) -> Self:
        shown = printable(problem)
        return cls(f"The table of {tool} contradicts itself: {shown}. Paste the output as the tool printed it.")

    @classmethod
    def unknown_cell(cls, tool: str, where: str, cell: str, known: str) -> Self:
        return cls(
            f"The table of {tool} has {short(cell)} in {printable(where)}, which treefold does not know. Known are "
            f"{known}. Write the links as plain JSON, or give another tool's output."
        )

    @classmethod
    def two_machines(cls, why: str) -> Self:
        return cls(f"The text holds two machines, or one twice: {printable(why)}. Give the text of one.")

    @classmethod
    def twice(cls, what: str, name: str) -> Self:
        return cls(f"The {what} {short(name)} stands there twice. Each has one of its own; correct the file.")

    @classmethod
    def peer_access(cls, what: str) -> Self:
        return cls(
            f"{what} says which devices may access each other, not how fast; it can even hide the fastest links. Give "
            f"a topology with links, such as `nvidia-smi topo -m`."
        )

    @classmethod
    def several(cls, names: Sequence[str]) -> Self:
        shown = ", ".join(short(name)[1:-1] for name in names[:_MANY]) + (", …" if len(names) > _MANY else "")
        return cls(f"This JSON holds {len(names)} matrices ({shown}). load_topology reads one: give the text of one.")

    @classmethod
    def unrecognised(cls, start: str) -> Self:
        return cls(f"This is no topology that treefold knows: it starts with {short(start)}. It reads {_FORMATS}.")

    @classmethod
    def network(cls, what: str) -> Self:
        return cls(
            f"{what} lists NICs, hosts and switches of a network and no device that could combine values. Describe the "
            f"hosts with their devices in the plain JSON form, or name a known cluster."
        )

    @classmethod
    def unknown_json(cls, keys: Sequence[str]) -> Self:
        shown = ", ".join(short(key)[1:-1] for key in keys[:_MANY]) or "nothing"
        return cls(
            f'The JSON has {shown}, and no machine. The plain form is {{"devices": [...], "switches": [...], "links": '
            f'[{{"between": ["gpu:0", "gpu:1"], "gb_per_s": 25.0}}, ...]}}; {{"gb_per_s": matrix}} is read as well.'
        )


class SimulationError(TreefoldError, ValueError):
    """A plan does not fit a machine, or a number gives no time."""

    @classmethod
    def number(cls, **number: object) -> Self:
        """Refuse the value of one of the numbers in the table above."""
        [(name, value)] = number.items()
        return cls(f"{name} is {short(value)}. It takes {_ALLOWED[name]}.")

    @classmethod
    def strangers(cls, devices: Sequence[str], known: Sequence[str]) -> Self:
        return cls(
            f"The plan uses {some(devices)}, and the topology has {some(known)}. Plan for devices of the topology, "
            f"or simulate on one that has them."
        )
