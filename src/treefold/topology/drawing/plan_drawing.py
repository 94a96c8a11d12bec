"""A movement as a picture: a lifeline per device, time downwards, an arrow for each copy between devices.

Any movement draws: only its buffers' devices and its steps' actions are read. Packs are laid below each other within a
step, so that their arrows do not hide one another; in a step everything may happen at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from treefold.errors.words import counted
from treefold.keyed import grouped
from treefold.plan import Movement
from treefold.plan.ir import Action, Combine, Copy, Role, Step
from treefold.topology.drawing.svg import arrow, drawing, element, text, titled

MAX_PACKS = 8  # more arrows between two lifelines cannot be followed
_GUTTER, _MARGIN, _HEAD = 112, 16, 84
_ALONE, _SHARED, _LOCAL = 64.0, 34.0, 28.0  # heights: of arrows alone in a step, of one pack among several, of none
_LEFT, _ROW = 30.0, 26.0


@dataclass(frozen=True, slots=True)
class _Scene:
    """The positions of the columns, and the packs that are drawn."""

    movement: Movement
    column: dict[str, float]
    packs: tuple[int, ...]

    @property
    def width(self) -> float:
        return max(420, max(self.column.values()) + _spacing(len(self.column)) / 2 + _MARGIN)

    @property
    def hidden_packs(self) -> int:
        return max(0, self.movement.num_packs - len(self.packs))

    def tone(self, pack: int) -> str:
        return f"tf-tone-{self.packs.index(pack)}"

    def ends(self, action: Action) -> tuple[str, str]:
        """Return the devices that an action reads from and writes to."""
        source = action.source if isinstance(action, Copy) else action.target
        return self.movement.buffers[source.buffer].device, self.movement.buffers[action.target.buffer].device

    def crosses(self, action: Action) -> bool:
        source, target = self.ends(action)
        return source != target


def draw_movement(movement: Movement, *, title: str) -> str:
    """Return the movement as one SVG element with a title and a description, legible in light and dark themes.

    If there are more than ``MAX_PACKS`` packs, the first ones are drawn and a note counts the rest. Copies and
    concatenations on one device are small squares. Combinations are dots, with a ring once every contribution is in.
    Copies between devices are arrows. Several copies of one pack along one link in one step share an arrow with their
    number.
    """
    scene = _make_scene(movement)
    top, rows = float(_HEAD), list[str]()
    for number, step in enumerate(movement.steps, start=1):
        height = sum(_pack_heights(scene, step).values()) or _LOCAL
        rows.append(_draw_step(scene, step, number=number, top=top, height=height))
        top += height
    bottom = top + 14
    packs = [(scene.tone(pack), f"pack {pack}") for pack in scene.packs] if len(scene.packs) > 1 else []
    note = f"{counted(scene.hidden_packs, 'more pack')} not drawn." if scene.hidden_packs else ""
    legend, end = _draw_legend(packs, note=note, width=scene.width, top=bottom + 36)
    return drawing(
        [_draw_lifelines(scene, bottom), *rows, legend],
        width=scene.width,
        height=end,
        title=f"{title} on {counted(len(scene.column), 'device')}",
        description=_describe(scene),
    )


def _make_scene(movement: Movement) -> _Scene:
    ends = [buffer for buffer in movement.buffers if buffer.role in {Role.INPUT, Role.OUTPUT}]
    devices = list(dict.fromkeys(buffer.device for buffer in (*ends, *movement.buffers)))
    spacing = _spacing(len(devices))
    column = {name: _GUTTER + spacing * (index + 0.5) for index, name in enumerate(devices)}
    packs = sorted({action.pack for step in movement.steps for action in step.actions})
    return _Scene(movement, column, tuple(packs[:MAX_PACKS]))


def _spacing(devices: int) -> float:
    return 130.0 if devices <= 4 else 88.0 if devices <= 8 else 66.0  # noqa: PLR2004 - chosen by eye


def _shown_actions(scene: _Scene, step: Step) -> dict[int, list[Action]]:
    """Return the actions of a step by pack, of the packs that are drawn."""
    actions: dict[int, list[Action]] = {pack: [] for pack in scene.packs}
    for action in step.actions:
        if action.pack in actions:
            actions[action.pack].append(action)
    return {pack: found for pack, found in actions.items() if found}


def _pack_heights(scene: _Scene, step: Step) -> dict[int, float]:
    """Return the height that each pack with arrows takes in a step; actions on one device need none of their own."""
    actions = _shown_actions(scene, step)
    crossing = [pack for pack, found in actions.items() if any(map(scene.crosses, found))]
    return dict.fromkeys(crossing, _ALONE if len(crossing) == 1 else _SHARED)


def _draw_step(scene: _Scene, step: Step, *, number: int, top: float, height: float) -> str:
    actions = _shown_actions(scene, step)
    parts = [titled(f"step {number}: {_verbs(scene, step)}")]
    if number % 2:
        parts.append(element("rect", class_="tf-band", x=8, y=top, width=scene.width - 16, height=height, rx=4))
    parts.append(text(str(number), 32, top + 19, class_="tf-strong", text_anchor="end"))
    parts.append(text(_verbs(scene, step), 42, top + 19, class_="tf-quiet", font_size=12))
    at = top
    for pack, band in _pack_heights(scene, step).items():
        links = Counter(scene.ends(action) for action in actions[pack] if scene.crosses(action))
        for link, copies in links.items():
            parts.append(_draw_arrow(scene, link, pack=pack, copies=copies, top=at, height=band))
        at += band
    staying = [action for found in actions.values() for action in found if not scene.crosses(action)]
    local = grouped((scene.ends(action)[1], action) for action in staying)
    for device, found in local.items():
        parts += _draw_marks(scene, found, x=scene.column[device], y=top + height / 2)
    return element("g", *parts, class_="tf-step")


def _verbs(scene: _Scene, step: Step) -> str:
    verbs = {
        "copy" if scene.crosses(action) else "combine" if isinstance(action, Combine) else "move"
        for action in step.actions
    }
    return ", ".join(sorted(verbs))


def _draw_arrow(scene: _Scene, link: tuple[str, str], *, pack: int, copies: int, top: float, height: float) -> str:
    """Draw a copy as an arrow that leaves early and arrives late, so that crossing arrows stay apart."""
    start, end = (scene.column[device] for device in link)
    words = f"pack {pack}: {link[0]} to {link[1]}" + (f", {copies} copies" if copies > 1 else "")
    drawn = _mark_copy((start, top + height * 0.16), (end, top + height * 0.84))
    return element("g", titled(words), drawn, class_=f"tf-copy {scene.tone(pack)}", data_copies=copies)


def _draw_marks(scene: _Scene, actions: list[Action], *, x: float, y: float) -> list[str]:
    """Draw the actions on one device in one step: a mark per pack and kind, side by side."""
    kinds = dict.fromkeys((a.pack, isinstance(a, Combine), isinstance(a, Combine) and a.final) for a in actions)
    gap = min(16.0, 0.7 * _spacing(len(scene.column)) / len(kinds))
    left = x - gap * (len(kinds) - 1) / 2
    return [
        _draw_mark(scene, pack, combines=combines, final=final, at=(left + gap * index, y))
        for index, (pack, combines, final) in enumerate(kinds)
    ]


def _draw_mark(scene: _Scene, pack: int, *, combines: bool, final: bool, at: tuple[float, float]) -> str:
    mark = _mark_combination(*at, final=final) if combines else _mark_move(*at)
    words = "moved on its device" if not combines else "combined, every contribution in" if final else "combined"
    kind = "tf-combine" if combines else "tf-move"
    return element("g", titled(f"pack {pack}: {words}"), mark, class_=f"{kind} {scene.tone(pack)}")


def _draw_lifelines(scene: _Scene, bottom: float) -> str:
    """Draw a line per device, from its name and contributions down to its result."""
    devices: dict[Role, set[str]] = defaultdict(set)
    for buffer in scene.movement.buffers:
        devices[buffer.role].add(buffer.device)
    lines = []
    for name, x in scene.column.items():
        parts = [
            titled(name),
            element("line", class_="tf-rule", x1=x, y1=_HEAD - 18, x2=x, y2=bottom, stroke_width=1.5),
            text(name, x, 30, class_="tf-strong", text_anchor="middle"),
            text(_replicas_on(scene, name), x, 47, class_="tf-quiet", text_anchor="middle", font_size=11),
        ]
        if name in devices[Role.INPUT]:
            parts.append(_mark_contribution(x, _HEAD - 18))
        if name in devices[Role.OUTPUT]:
            parts.append(_mark_result(x, bottom))
        lines.append(element("g", *parts, class_="tf-lifeline"))
    return element("g", *lines)


def _replicas_on(scene: _Scene, device: str) -> str:
    found = {b.position for b in scene.movement.buffers if b.role is Role.INPUT and b.device == device}
    if len(found) == 1:
        return f"replica {min(found)}"
    return f"replicas {', '.join(map(str, sorted(found)))}" if found else ""


def _describe(scene: _Scene) -> str:
    """Return the drawing in words, for screen readers."""
    steps = [
        f"Step {number}: {_verbs(scene, step)}, {counted(sum(map(scene.crosses, step.actions)), 'copy', 'copies')}"
        " between devices."
        for number, step in enumerate(scene.movement.steps, start=1)
    ]
    head = (
        f"{counted(len(scene.column), 'device')}, {counted(scene.movement.num_packs, 'pack')},"
        f" {counted(len(steps), 'step')}, from top to bottom."
    )
    return " ".join([head, *steps])


def _mark_contribution(x: float, y: float) -> str:
    """Return the mark of a device that brings contributions: a ring."""
    return element("circle", class_="tf-ring", cx=x, cy=y, r=4.5, stroke_width=1.5)


def _mark_result(x: float, y: float) -> str:
    """Return the mark of a device that gets the result: a filled square."""
    return element("rect", class_="tf-fill", x=x - 5, y=y - 5, width=10, height=10, rx=1.5)


def _mark_combination(x: float, y: float, *, final: bool) -> str:
    """Return the mark of a combination: a dot, ringed where it holds every contribution."""
    dot = element("circle", class_="tf-fill", cx=x, cy=y, r=4.5)
    return element("circle", class_="tf-ring", cx=x, cy=y, r=8.0, stroke_width=1.5) + dot if final else dot


def _mark_move(x: float, y: float) -> str:
    """Return the mark of copies and concatenations that stay on a device: a small open square."""
    return element("rect", class_="tf-ring", x=x - 3.5, y=y - 3.5, width=7, height=7, stroke_width=1.5)


def _mark_copy(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Return an arrow with a dot where it starts, so that one that crosses a lifeline does not seem to start there."""
    dot = element("circle", class_="tf-fill", cx=start[0], cy=start[1], r=2.4)
    return arrow(start, end, gap=2, head=9, thick=1.6) + dot


def _draw_legend(packs: Sequence[tuple[str, str]], *, note: str, width: float, top: float) -> tuple[str, float]:
    """Return the legend, wrapped to ``width``, and its lower end.

    ``packs``: (class, words) of each colour. ``note``: a last line; may be empty.
    """
    items = [
        (_mark_contribution(0, 0), "contribution"),
        (_mark_move(0, 0), "moved on its device"),
        (_mark_combination(0, 0, final=False), "combined"),
        (_mark_combination(0, 0, final=True), "combined, every contribution in"),
        (_mark_result(0, 0), "result"),
    ]
    swatch = element("line", class_="tf-line", x1=-9, y1=0, x2=9, y2=0, stroke_width=3)
    colours = [(element("g", swatch, class_=tone), words) for tone, words in packs]
    x, y, parts = _LEFT, top, list[str]()
    for index, (mark, words) in enumerate([*items, *colours]):
        needed = 46 + 6.6 * len(words)
        if x > _LEFT and (x + needed > width or index == len(items)):
            x, y = _LEFT, y + _ROW
        label = text(words, 16, 4.5, class_="tf-quiet", font_size=12)
        parts.append(element("g", mark, label, transform=f"translate({x:.0f} {y:.0f})"))
        x += needed
    if note:
        y += _ROW
        parts.append(text(note, _LEFT - 8, y + 4.5, class_="tf-quiet", font_size=12))
    return element("g", titled("legend"), *parts, class_="tf-legend"), y + _ROW
