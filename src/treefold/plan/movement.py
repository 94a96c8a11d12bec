"""The movement: its constructor proves it, and its digest compares it between processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from treefold.dtypes import itemsize
from treefold.errors.words import counted
from treefold.plan.check import Proof, prove
from treefold.plan.ir import Buffer, Copy, Hop, Leaf, Step
from treefold.plan.serialize import plain_buffer, plain_steps

#: What notebooks show, by kind. The rooms that draw import this one, so they register their functions here.
_DRAWINGS: dict[str, Callable[..., str]] = {}


def register_drawing(kind: str, draw: Callable[..., str]) -> None:
    """Register the function that draws values of a kind: ``"movement"``, ``"machine"`` or ``"packing"``."""
    _DRAWINGS[kind] = draw


def drawn(kind: str, value: Any, **options: str) -> str | None:
    """Return the drawing of a value; None, so that notebooks show text, if no function is registered for its kind."""
    draw = _DRAWINGS.get(kind)
    return None if draw is None else draw(value, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """Leaves, buffers and steps that give every destination every contribution exactly once.

    The constructor proves it, so every movement is a proved one. ``proof``: properties that the proof found.

    Raises:
        PlanError: Its message names the step and what is wrong with it.

    """

    leaves: tuple[Leaf, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    proof: Proof = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Prove the movement."""
        object.__setattr__(self, "proof", prove(self.leaves, self.buffers, self.steps))

    def __repr__(self) -> str:
        """Return one line with the numbers of arrays, devices and steps."""
        return f"<Movement: {self._amounts}>"

    @property
    def _amounts(self) -> str:
        parts = ((self.leaves, "array"), (self.devices, "device"), (self.steps, "step"))
        return ", ".join(counted(len(items), noun) for items, noun in parts)

    def _repr_html_(self) -> str | None:
        """Return the drawing that notebooks show, or None without ``treefold.topology``."""
        return drawn("movement", self, title="a movement")

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that the movement touches, in order of first mention."""
        return tuple(dict.fromkeys(buffer.device for buffer in self.buffers))

    @property
    def num_packs(self) -> int:
        """Number of packs that the steps move; 0 if nothing is packed."""
        return len({action.pack for step in self.steps for action in step.actions} - {-1})

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The copies that cross from one device to another, in order of their steps."""
        return hops_of(self)

    @property
    def digest(self) -> str:
        """128 bits in hexadecimal: equal for equal movements, in every process and with every version of Python.

        The digest covers the leaves' dtypes and goals, the buffers without their names, and the steps. Each access
        computes it, in about the time that ``to_json`` of a plan takes.
        """
        import hashlib  # noqa: PLC0415 - loads OpenSSL: callers that compare nothing do not pay for it

        told = (
            [(leaf.dtype, leaf.goal.value) for leaf in self.leaves],
            [plain_buffer(buffer)[1:] for buffer in self.buffers],  # without their names
            plain_steps(self.steps),
        )
        # JSON of text and whole numbers has one spelling; hash() and pickle change between processes and versions.
        text = json.dumps(told, separators=(",", ":"))
        return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def hops_of(movement: Movement) -> tuple[Hop, ...]:
    """Return the copies of a movement that cross from one device to another, in order of their steps."""
    buffers = movement.buffers
    return tuple(
        Hop(
            number,
            action.pack,
            source.device,
            target.device,
            action.source.length * itemsize(movement.leaves[source.leaf].dtype),
        )
        for number, step in enumerate(movement.steps, start=1)
        for action in step.actions
        if isinstance(action, Copy)
        for source, target in [(buffers[action.source.buffer], buffers[action.target.buffer])]
        if source.device != target.device
    )
