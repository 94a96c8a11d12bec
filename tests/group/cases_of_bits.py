"""Calls of groups, drawn by number: the same number is the same call on every rank, which can draw what all bring."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass

import ml_dtypes  # noqa: F401 - teaches NumPy the name "bfloat16"
import numpy as np

from treefold import _native
from treefold.dtypes import COMPLEX, DTYPES, FOLDABLE
from treefold.testing import mixed_values, owned, special_values

LAYOUTS = ("contiguous", "strided", "reversed", "transposed", "read-only", "aliased", "unaligned")
SHAPES = ("array", "list", "dict of dicts", "many")
PATHS = ("new", "in place", "out", "strided out", "root", "ops", "ops in place", "scatter")
VALUES = ("owned", "mixed", "special")
#: What is not drawn together: parts of equal lengths need axes that can be cut, and one call has one structure.
NEVER = {
    ("scatter", "transposed"),
    *(("scatter", shape) for shape in SHAPES if shape != "list"),
    *((path, shape) for path in ("ops", "ops in place") for shape in ("list", "dict of dicts")),
}
OPS = ("sum", "mean", "min", "max", "product")
#: Per rank: the same everywhere, different ones, and many, of which each gets a small part of the staging memory.
REPLICAS = ("one", "two", "three", "different", "many")
_MOST_RANKS = 8
_HALF_BYTES = {1: 1 << 20, 2: 1 << 20, 3: 700_416, 4: 1 << 19, 5: 421_888, 6: 352_256, 7: 303_104, 8: 1 << 18}
_LINE = 64
_POOL = 9973


@dataclass(frozen=True)
class Case:
    """One call.

    ``replicas``: of each rank. ``lengths``: of its leaves, in elements. ``is_shared``: the values lie in memory that
    all ranks see. ``values``: what is in them. ``weights``: of each replica, none without.
    """

    number: int
    dtype: str
    op: str
    accumulate: str
    replicas: tuple[int, ...]
    lengths: tuple[int, ...]
    layout: str
    shape: str
    path: str
    is_shared: bool
    values: str
    weights: tuple[float, ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.replicas)

    def of_rank(self, rank: int) -> range:
        """Return the numbers of a rank's replicas among those of all ranks."""
        before = sum(self.replicas[:rank])
        return range(before, before + self.replicas[rank])

    def contribution(self, replica: int) -> list[np.ndarray]:
        """Return what a replica brings to each leaf."""
        if self.layout == "aliased":  # a rank's replicas are one and the same array
            replica = next(self.of_rank(rank)[0] for rank in range(self.size) if replica in self.of_rank(rank))
        if self.values == "owned" and replica < _most_owners(self.dtype):
            return [owned(replica, (length,), self.dtype) for length in self.lengths]
        pool = _pool(self.dtype, self.values)
        return [np.resize(np.roll(pool, 613 * replica + 97 * leaf), n) for leaf, n in enumerate(self.lengths)]


def draw(seed: int, number: int) -> Case:
    """Return call ``number``: all dtypes with all their ops in turn, everything else at random."""
    rng = random.Random(f"{seed} {number}")
    pairs = _pairs()
    dtype, op = pairs[number % len(pairs)]
    size = rng.randint(1, _MOST_RANKS)
    path = rng.choice(PATHS)
    replicas = (1,) * size if path == "scatter" else _replicas(rng, size)
    shape = "list" if path == "scatter" else rng.choice(SHAPES if not path.startswith("ops") else ("array", "many"))
    layout = rng.choice([one for one in LAYOUTS if path != "scatter" or one != "transposed"])
    is_weighted = op == "mean" and path not in {"root", "scatter"} and rng.random() < 0.4
    weights = [rng.choice([0.0, 0.1, 0.5, 1.0, 3.0, 1e-300, 1e300]) for _ in range(sum(replicas))]
    weights[rng.randrange(len(weights))] = 2.0
    return Case(
        number,
        dtype,
        op,
        rng.choice(["exact", "native"]) if path.startswith("ops") else "exact",
        replicas,
        tuple(_lengths(rng, dtype, shape, replicas, is_cut=path == "scatter")),
        layout,
        shape,
        path,
        layout == "contiguous" and rng.random() < 0.5,
        rng.choice(VALUES),
        tuple(weights) if is_weighted else (),
    )


@functools.cache
def _pairs() -> list[tuple[str, str]]:
    """Return every dtype with every op that it has a meaning for, in an order that mixes them."""
    pairs = [
        (dtype, op)
        for dtype in FOLDABLE
        for op in OPS
        if not (op in {"min", "max"} and dtype in COMPLEX) and not (op not in {"min", "max"} and dtype == "bool")
    ]
    random.Random(1).shuffle(pairs)
    return pairs


def _replicas(rng: random.Random, size: int) -> tuple[int, ...]:
    kind = rng.choices(REPLICAS, [6, 3, 2, 5, 1])[0]
    if kind == "different":
        return tuple(rng.randint(1, 3) for _ in range(size))
    if kind == "many":
        odd = rng.randrange(size)
        return tuple(rng.randint(10, 40) if rank == odd else 1 for rank in range(size))
    return (REPLICAS.index(kind) + 1,) * size


def _lengths(rng: random.Random, dtype: str, shape: str, replicas: tuple[int, ...], *, is_cut: bool) -> list[int]:
    """Return lengths around the bounds at which a call is made another way, or its parts begin."""
    itemsize, size = DTYPES[dtype].bits // 8, len(replicas)
    chunk = _HALF_BYTES[size] // max(replicas) // _LINE * _LINE
    part = -(-chunk // size // _LINE) * _LINE
    small = min(_native.SMALL_BYTES, chunk)
    near = [0, itemsize, _LINE, small, part, 4096, 3 * 4096]
    far = [chunk, chunk + part, 2 * chunk, 2 * chunk + 4096, 3 * chunk]
    bound = rng.choice(far if rng.random() < 0.2 / max(1, sum(replicas) // 8) else near)
    total = max(0, bound // itemsize + rng.choice([-1, 0, 1]))
    if is_cut:
        return [total // size * size, rng.randint(0, 9) * size]
    if shape == "array":
        return [total]
    if shape == "many":
        cuts = sorted(rng.randint(0, total) for _ in range(rng.randint(5, 40)))
        return [high - low for low, high in zip([0, *cuts], [*cuts, total], strict=True)]
    return [total, 0, rng.choice([1, 7, 63, 64, 65])]


def _most_owners(dtype: str) -> int:
    """Return how many replicas can bring different powers of two, times 7, in a dtype."""
    return {"float16": 13, "bool": 7}.get(dtype, DTYPES[dtype].bits - 1 if "int" in dtype else 60)


@functools.cache
def _pool(dtype: str, values: str) -> np.ndarray:
    if values == "owned":  # more replicas than the dtype can tell apart
        return mixed_values(5, (_POOL,), dtype, is_finite=True)
    if values == "mixed":
        return mixed_values(7, (_POOL,), dtype)
    specials = special_values(dtype)
    if dtype not in COMPLEX and np.dtype(dtype).kind not in "iub":
        most = 1e30 if dtype != "float16" else 6e4
        specials = np.concatenate([specials, np.array([most, 1, -most] * 5, dtype)])
    return specials[np.random.default_rng(3).integers(len(specials), size=_POOL)]
