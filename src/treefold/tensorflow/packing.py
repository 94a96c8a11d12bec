"""Packs of small tensors: each replica concatenates its tensors on its device, and every destination splits the result.

A tensor on its way to another device costs an operation that sends and one that receives, whatever its size, and those
are most of the time of a small gradient. A pack pays them once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from treefold.tensorflow.values import Pair, is_alike

#: A larger value is sent as it is: a copy into the pack and one out of it would cost more than sending it.
MOST_BYTES = 1 << 15


def grouped(pairs: Sequence[Pair], most_bytes: int) -> list[list[int]]:
    """Return the indices of pairs that travel together, in order; values above ``most_bytes`` travel alone."""
    groups: dict[object, list[int]] = {}
    for index, pair in enumerate(pairs):
        is_small = is_alike(pair) and pair.nbytes <= most_bytes
        key = (pair.dtype, pair.places, pair.targets) if is_small else index
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def packed(pairs: Sequence[Pair]) -> Pair:
    """Return the one value, flat, that carries several of the same dtype and devices."""
    first = pairs[0]
    components = []
    for replica, place in enumerate(first.places):
        with tf.device(place):
            flat = [_reshaped(pair.components[replica], [-1]) for pair in pairs]
            components.append(flat[0] if len(flat) == 1 else tf.concat(flat, 0))
    return Pair(tuple(components), first.places, first.targets)


def unpacked(result: Any, pairs: Sequence[Pair]) -> list[list[Any]]:
    """Return, for each of the pairs that were packed, its part of their result on each destination."""
    shapes = [pair.components[0].shape for pair in pairs]
    parts: list[list[Any]] = [[] for _ in pairs]
    for target in pairs[0].targets:
        with tf.device(target):
            flat = (
                [tf.identity(result)] if len(pairs) == 1 else tf.split(result, [math.prod(shape) for shape in shapes])
            )
            for part, one, shape in zip(parts, flat, shapes, strict=True):
                part.append(_reshaped(one, shape))
    return parts


def _reshaped(flat: Any, shape: Sequence[int]) -> Any:
    return flat if len(flat.shape) == len(shape) == 1 else tf.reshape(flat, shape)
