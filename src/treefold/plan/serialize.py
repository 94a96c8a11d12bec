"""The parts of a movement in JSON: a plain form, and readers that refuse any other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from treefold.errors import PlanError
from treefold.errors.words import listed, short
from treefold.plan.ir import Action, Buffer, Combine, Concat, Copy, Goal, Leaf, Range, Role, Step

_MAX_CHARACTERS = 64 * 2**20  # a plan of 16 devices and 1,000 arrays takes about 10 MB
_GOALS, _ROLES = [goal.value for goal in Goal], [role.value for role in Role]
_KINDS: dict[str, type[Combine | Concat]] = {"combine": Combine, "concat": Concat}


def plain_buffer(buffer: Buffer) -> list[Any]:
    """Return a buffer in its form for JSON."""
    return [buffer.name, buffer.device, buffer.length, buffer.role.value, buffer.leaf, buffer.position]


def plain_steps(steps: Sequence[Step]) -> list[list[list[Any]]]:
    """Return steps in their form for JSON."""
    return [[_plain_action(action) for action in step.actions] for step in steps]


def _plain_action(action: Action) -> list[Any]:
    if isinstance(action, Copy):
        return ["copy", action.pack, _plain_range(action.source), _plain_range(action.target)]
    kind = "combine" if isinstance(action, Combine) else "concat"
    sources = [_plain_range(source) for source in action.sources]
    return [kind, action.pack, action.final, sources, _plain_range(action.target)]


def _plain_range(part: Range) -> list[int]:
    return [part.buffer, part.start, part.stop]


def read_object(text: str) -> dict[str, Any]:
    """Return the JSON object in a text.

    Raises:
        PlanError: It is not text, too long for a plan, not JSON, or an object with a field twice.

    """
    if not isinstance(text, str):
        raise PlanError.unreadable(f"it is {short(text)}, not text")
    if len(text) > _MAX_CHARACTERS:
        raise PlanError.unreadable(f"it has {len(text)} characters, more than {_MAX_CHARACTERS}")
    try:
        data = json.loads(text, object_pairs_hook=_without_duplicates)
    except PlanError:
        raise
    except (ValueError, RecursionError) as error:
        raise PlanError.unreadable(str(error)) from None
    return data if isinstance(data, dict) else {}


def read_leaf(data: object) -> tuple[str, Leaf]:
    """Return the path of a leaf and the leaf."""
    path, dtype, goal = read_list(data, 3)
    return read_text(path), Leaf(read_text(dtype), Goal(_read_choice(goal, _GOALS)))


def read_buffer(data: object) -> Buffer:
    """Return a buffer."""
    name, device, length, role, leaf, position = read_list(data, 6)
    numbers = read_number(length), Role(_read_choice(role, _ROLES)), read_number(leaf), read_number(position)
    return Buffer(read_text(name), read_text(device), *numbers)


def read_step(data: object) -> Step:
    """Return a step."""
    return Step(tuple(_read_action(read_list(action)) for action in read_list(data)))


def _read_action(data: list[Any]) -> Action:
    kind = _read_choice(data[0] if data else None, ("copy", *_KINDS))
    if kind == "copy":
        _, pack, source, target = read_list(data, 4)
        return Copy(_read_range(source), _read_range(target), read_number(pack))
    _, pack, final, sources, target = read_list(data, 5)
    if not isinstance(final, bool):
        raise PlanError.unreadable(f"{short(final)} stands where true or false is meant")
    parts = tuple(_read_range(source) for source in read_list(sources))
    return _KINDS[kind](parts, _read_range(target), pack=read_number(pack), final=final)


def _read_range(data: object) -> Range:
    return Range(*map(read_number, read_list(data, 3)))


def read_list(value: object, length: int | None = None) -> list[Any]:
    """Return a list, of ``length`` elements unless that is None."""
    if not isinstance(value, list) or length not in {None, len(value)}:
        meant = "a list" if length is None else f"a list of {length}"
        raise PlanError.unreadable(f"{short(value)} stands where {meant} is meant")
    return value


def read_number(value: object) -> int:
    """Return a whole number below 2**63 in magnitude."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**63:
        raise PlanError.unreadable(f"{short(value)} stands where a whole number is meant")
    return value


def read_text(value: object) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise PlanError.unreadable(f"{short(value)} stands where text is meant")
    return value


def _read_choice(value: object, choices: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise PlanError.unreadable(f"{short(value)} stands where one of {listed(choices)} is meant")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise PlanError.unreadable("a field stands in it twice")
    return data
