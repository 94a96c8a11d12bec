"""Plans as JSON: written plainly, read strictly, and proved again when read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from treefold.errors import PlanError
from treefold.errors.words import listed, short
from treefold.plan.check import finish
from treefold.plan.ir import Action, Buffer, Combine, Concat, Copy, Goal, Leaf, Plan, PlanDraft, Range, Role, Step

_VERSION = 1
_MAX_CHARACTERS = 64 * 2**20  # a plan of 16 devices and 1,000 arrays takes about 10 MB
_GOALS, _ROLES = [goal.value for goal in Goal], [role.value for role in Role]
_KINDS: dict[str, type[Combine | Concat]] = {"combine": Combine, "concat": Concat}


def to_json(plan: Plan) -> str:
    """Return a plan as JSON text."""
    return json.dumps(
        {
            "treefold_plan": _VERSION,
            "collective": plan.collective,
            "algorithm": plan.algorithm,
            "executor": plan.executor,
            "kernel": plan.kernel,
            "accumulate": plan.accumulate,
            "num_packs": plan.num_packs,
            "notes": list(plan.notes),
            "leaves": [[leaf.path, leaf.dtype, leaf.goal.value] for leaf in plan.leaves],
            "buffers": [[b.name, b.device, b.length, b.role.value, b.leaf, b.position] for b in plan.buffers],
            "steps": [[_action_to_json(action) for action in step.actions] for step in plan.steps],
        }
    )


def from_json(text: str) -> Plan:
    """Read a plan back and prove it.

    Raises:
        PlanError: the text is no plan, or the plan does not hold.

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
    if not isinstance(data, dict) or type(data.get("treefold_plan")) is not int or data["treefold_plan"] != _VERSION:
        raise PlanError.unreadable(f"it is not an object with treefold_plan: {_VERSION}")
    return finish(_draft(data))


def _draft(data: dict[str, Any]) -> PlanDraft:
    words = ("collective", "algorithm", "executor", "kernel", "accumulate")
    known = {*words, "treefold_plan", "num_packs", "notes", "leaves", "buffers", "steps"}
    if data.keys() != known:
        raise PlanError.unreadable(f"fields {sorted(data.keys() ^ known)} are missing or unknown")
    return PlanDraft(
        **{word: _text(data[word]) for word in words},
        num_packs=_number(data["num_packs"]),
        notes=tuple(_text(note) for note in _list(data["notes"])),
        leaves=tuple(
            Leaf(_text(path), _text(dtype), Goal(_choice(goal, _GOALS)))
            for path, dtype, goal in (_list(leaf, 3) for leaf in _list(data["leaves"]))
        ),
        buffers=tuple(
            Buffer(
                _text(name),
                _text(device),
                _number(length),
                Role(_choice(role, _ROLES)),
                _number(leaf),
                _number(position),
            )
            for name, device, length, role, leaf, position in (_list(buffer, 6) for buffer in _list(data["buffers"]))
        ),
        steps=tuple(
            Step(tuple(_action_from_json(_list(action)) for action in _list(actions)))
            for actions in _list(data["steps"])
        ),
    )


def _action_to_json(action: Action) -> list[Any]:
    if isinstance(action, Copy):
        return ["copy", action.pack, _range(action.source), _range(action.target)]
    kind = "combine" if isinstance(action, Combine) else "concat"
    return [kind, action.pack, action.final, [_range(source) for source in action.sources], _range(action.target)]


def _action_from_json(data: list[Any]) -> Action:
    kind = _choice(data[0] if data else None, ("copy", *_KINDS))
    if kind == "copy":
        _, pack, source, target = _list(data, 4)
        return Copy(_place(source), _place(target), _number(pack))
    _, pack, final, sources, target = _list(data, 5)
    if not isinstance(final, bool):
        raise PlanError.unreadable(f"{short(final)} stands where true or false is meant")
    places = tuple(_place(source) for source in _list(sources))
    return _KINDS[kind](places, _place(target), pack=_number(pack), final=final)


def _range(where: Range) -> list[int]:
    return [where.buffer, where.start, where.stop]


def _place(data: object) -> Range:
    buffer, start, stop = _list(data, 3)
    return Range(_number(buffer), _number(start), _number(stop))


def _list(value: object, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or length not in {None, len(value)}:
        meant = "a list" if length is None else f"a list of {length}"
        raise PlanError.unreadable(f"{short(value)} stands where {meant} is meant")
    return value


def _choice(value: object, choices: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise PlanError.unreadable(f"{short(value)} stands where one of {listed(choices)} is meant")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**63:
        raise PlanError.unreadable(f"{short(value)} stands where a whole number is meant")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise PlanError.unreadable(f"{short(value)} stands where text is meant")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise PlanError.unreadable("a field stands in it twice")
    return data
