"""Points for devices that have links of their own: a ring, a line, a mesh, two quads, or as far apart as their links.

Coordinates are pixels; neighbours are about ``_APART`` from each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from treefold.topology.graph import Topology

_APART = 120.0
_IN_A_ROW, _LARGEST = 10, 570.0  # devices in a line, and the radius of a circle, that a screen is wide enough for
_SQUEEZE = 0.72  # drawings are wider than they are high
_ROUNDS, _STARTS = 300, 8
_SAME = 1e-6

Points = dict[str, tuple[float, float]]
_Array = npt.NDArray[np.float64]


def lay_out_directly(topology: Topology, devices: Sequence[str]) -> Points:
    """Return a point for each of these devices, which stand around (0, 0)."""
    links = {name: [other for other in topology.neighbours(name) if other in set(devices)] for name in devices}
    count, degrees = len(devices), sorted(map(len, links.values()))
    if count == 1:
        return {devices[0]: (0.0, 0.0)}
    if degrees[0] == degrees[-1] == 2 and count > 2:  # noqa: PLR2004 - a ring
        return _circle(_walk(devices[0], links))
    if degrees[-1] <= 2 and degrees.count(1) == 2:  # noqa: PLR2004 - a line
        ends = [name for name in devices if len(links[name]) == 1]
        return _line(_walk(ends[0], links))
    if count == 4:  # noqa: PLR2004 - a square
        corners = [(0.0, 0.0), (1.6, 0.0), (0.0, 1.1), (1.6, 1.1)]
        return {name: (x * _APART, y * _APART) for name, (x, y) in zip(devices, corners, strict=True)}
    if degrees[0] == count - 1:
        return _circle(devices)
    return _two_quads(devices, links) or _by_distance(topology, devices, links)


def _walk(start: str, links: dict[str, list[str]]) -> list[str]:
    """Return devices in the order in which a ring or line passes them."""
    order, at = [start], start
    while True:
        ahead = [other for other in links[at] if other not in order]
        if not ahead:
            return order
        at = ahead[0]
        order.append(at)


def _line(devices: Sequence[str]) -> Points:
    """Return a line that turns back where the screen ends."""
    points = {}
    for number, name in enumerate(devices):
        row, column = divmod(number, _IN_A_ROW)
        points[name] = (_APART * (_IN_A_ROW - 1 - column if row % 2 else column), _APART * row)
    return points


def _circle(devices: Sequence[str]) -> Points:
    radius = min(max(1.0, len(devices) / (2 * math.pi)) * _APART * 1.15, _LARGEST)
    angles = [2 * math.pi * (number - 0.5) / len(devices) - math.pi / 2 for number in range(len(devices))]
    return {
        name: (radius * math.cos(angle), radius * _SQUEEZE * math.sin(angle))
        for name, angle in zip(devices, angles, strict=True)
    }


def _two_quads(devices: Sequence[str], links: dict[str, list[str]]) -> Points | None:
    """Return the drawing of a DGX-1: two quads that mirror each other, with the links across lying level.

    The devices are two complete quads, the first of which holds the first device, joined one to one.
    """
    if len(devices) != 8:  # noqa: PLR2004 - two quads
        return None
    for quad in _quads(devices, links):
        partner = {a: [b for b in links[a] if b not in quad] for a in quad}
        others = [b for found in partner.values() for b in found]
        rest = set(devices) - set(quad)
        if set(others) == rest and len(others) == 4 and all(rest - {b} <= set(links[b]) for b in rest):  # noqa: PLR2004
            spots = [(-2.3, -1.0), (-0.95, -0.42), (-2.3, 1.0), (-0.95, 0.42)]
            found = dict(zip(quad, spots, strict=True))
            found |= {partner[a][0]: (-x, y) for a, (x, y) in list(found.items())}
            return {name: (x * _APART, y * _APART) for name, (x, y) in found.items()}
    return None


def _quads(devices: Sequence[str], links: dict[str, list[str]]) -> list[list[str]]:
    first = devices[0]
    found = []
    near = [name for name in devices if name in links[first]]
    for i, a in enumerate(near):
        for j, b in enumerate(near[i + 1 :], i + 1):
            found += [[first, a, b, c] for c in near[j + 1 :] if b in links[a] and c in links[a] and c in links[b]]
    return found


def _by_distance(topology: Topology, devices: Sequence[str], links: dict[str, list[str]]) -> Points:
    """Return points whose distances are those of the graph as nearly as may be, wide links being shorter.

    Stress majorisation (Gansner, Koren, North 2004) from several circles; the drawing with the fewest crossings wins.
    """
    wanted = _distances(topology, devices, links)
    best, fewest = np.zeros((len(devices), 2)), math.inf
    edges = [(i, j) for i, a in enumerate(devices) for j, b in enumerate(devices) if i < j and b in links[a]]
    for start in range(_STARTS):
        order = np.random.default_rng(start).permutation(len(devices)) if start else np.arange(len(devices))
        angles = 2 * np.pi * order / len(devices)
        points = _relaxed(np.column_stack([np.cos(angles), np.sin(angles)]) * wanted.max() / 2, wanted)
        crossings = _crossings(points, edges)
        if crossings < fewest:
            best, fewest = points, crossings
    best = _upright(best)
    nearest = min(float(np.linalg.norm(best[i] - best[j])) for i in range(len(best)) for j in range(i))
    best *= max(1.0, 0.75 / max(nearest, 0.05)) * _APART
    return {name: (float(x), float(y)) for name, (x, y) in zip(devices, best, strict=True)}


def _distances(topology: Topology, devices: Sequence[str], links: dict[str, list[str]]) -> _Array:
    widest = float(max(topology.capacity(a, b) for a in devices for b in links[a]))
    length = np.full((len(devices), len(devices)), np.inf)
    for i, a in enumerate(devices):
        length[i, i] = 0.0
        for b in links[a]:
            length[i, devices.index(b)] = 1.25 - 0.4 * float(topology.capacity(a, b)) / widest
    for middle in range(len(devices)):
        length = np.minimum(length, length[:, middle, None] + length[middle])
    reached: _Array = np.where(np.isfinite(length), length, len(devices))
    return reached


def _relaxed(points: _Array, wanted: _Array) -> _Array:
    weight = 1 / np.square(wanted + np.eye(len(wanted)))
    np.fill_diagonal(weight, 0)
    for _ in range(_ROUNDS):
        apart = points[:, None] - points[None]
        distance = np.sqrt(np.square(apart).sum(-1)) + _SAME
        moved = weight[..., None] * (points[None] + apart * (wanted / distance)[..., None])
        points = moved.sum(1) / weight.sum(1)[:, None]
    return points


def _crossings(points: _Array, edges: Sequence[tuple[int, int]]) -> float:
    """Return how many pairs of edges cross, and more for edges that pass close to a device."""

    def side(a: int, b: int, c: int) -> float:
        ab, ac = points[b] - points[a], points[c] - points[a]
        return float(ab[0] * ac[1] - ab[1] * ac[0])

    count = 0.0
    for number, (a, b) in enumerate(edges):
        for c, d in edges[number + 1 :]:
            if len({a, b, c, d}) == 4 and side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0:  # noqa: PLR2004
                count += 1
        length = float(np.linalg.norm(points[b] - points[a]))
        for c in range(len(points)):
            along = float((points[c] - points[a]) @ (points[b] - points[a])) / length**2
            if c not in {a, b} and 0 < along < 1 and abs(side(a, b, c)) / length < 0.3:  # noqa: PLR2004 - about a box
                count += 3
    return count


def _upright(points: _Array) -> _Array:
    """Return the points turned so that the drawing is wide rather than high, and its first device stands left."""
    middle = points - points.mean(0)
    _, axes = np.linalg.eigh(middle.T @ middle)
    turned = middle @ axes[:, ::-1]
    turned[:, 0] *= -1 if turned[0, 0] > 0 else 1
    turned[:, 1] *= -1 if turned[0, 1] > 0 else 1
    upright: _Array = turned
    return upright
