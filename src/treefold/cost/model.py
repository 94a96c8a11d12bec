"""Closed forms: what a method takes on a machine whose links are all alike, in seconds.

``nbytes``: one replica's values (S). ``count``: devices (n). ``bytes_per_s``: one link, one direction (c).
``alpha_s``: one copy over one route. They leave folding out, as the simulator does unless told its cost.
"""

from __future__ import annotations

import math

LAUNCH_S = 7e-6
"""What a call costs beside its copies: launching kernels, and waiting for each other.

A prior, the least that others have measured: NCCL and RCCL take 10 µs for a few bytes between two A100 (NVIDIA/nccl
issue 583), 12.5 between eight H20 (deepseek-ai/DeepEP issue 303), 15 between eight MI300X (microsoft/mscclpp pull
request 646), 17 to 25 between sixteen MI250X dies (ROCm/rccl pull request 929), of which some is the latency of hops.
"""


_AS_GOOD = 1.01


def is_as_good(seconds: float, least: float) -> bool:
    """Tell whether a time is within 1 % of the least, the launch left out: all pay it, and it would hide differences.

    >>> is_as_good(LAUNCH_S + 1.009e-6, LAUNCH_S + 1e-6), is_as_good(LAUNCH_S + 1.02e-6, LAUNCH_S + 1e-6)
    (True, False)
    """
    return seconds <= least or seconds - LAUNCH_S <= _AS_GOOD * (least - LAUNCH_S)


def pipelined_tree_s(nbytes: float, *, depth: int, bytes_per_s: float, alpha_s: float, num_chunks: int) -> float:
    """Return T = (2D + k − 1)·(alpha + m/(k·r)): a pack of m bytes up a tree of depth D and down again in k chunks.

    ``bytes_per_s``: the rate r at which the pack may use its links.

    >>> pipelined_tree_s(1e9, depth=1, bytes_per_s=1e9, alpha_s=0.0, num_chunks=1)
    2.0
    """
    return (2 * depth + num_chunks - 1) * (alpha_s + nbytes / (num_chunks * bytes_per_s))


def best_chunk_bytes(nbytes: float, *, depth: int, bytes_per_s: float, alpha_s: float) -> float:
    """Return chunk* = sqrt(m·r·alpha/(2D − 1)), at which ``pipelined_tree_s`` is least; at most the pack.

    >>> best_chunk_bytes(1e6, depth=2, bytes_per_s=1e9, alpha_s=3e-6)
    31622.776601683792
    """
    return min(float(nbytes), math.sqrt(nbytes * bytes_per_s * alpha_s / (2 * depth - 1)))


def best_tree_s(nbytes: float, *, depth: int, bytes_per_s: float, alpha_s: float) -> float:
    """Return T* = (sqrt((2D − 1)·alpha) + sqrt(m/r))², the least of ``pipelined_tree_s`` over all chunk sizes.

    Where the pack would be less than a chunk, it travels whole: T = 2D·(alpha + m/r).
    """
    if nbytes * (2 * depth - 1) <= bytes_per_s * alpha_s:  # chunk* would be more than the pack
        return 2 * depth * (alpha_s + nbytes / bytes_per_s)
    return (math.sqrt((2 * depth - 1) * alpha_s) + math.sqrt(nbytes / bytes_per_s)) ** 2


def ring_s(nbytes: float, *, count: int, bytes_per_s: float, alpha_s: float) -> float:
    """Return T = 2·(n − 1)·(alpha + S/(n·c)): n packs, each around the ring to its root and around once more.

    Source: Patarasuk and Yuan 2009. Two rings, one in each direction, take half the second term.

    >>> ring_s(4e9, count=4, bytes_per_s=1e9, alpha_s=0.0)
    6.0
    """
    return 2 * (count - 1) * (alpha_s + nbytes / (count * bytes_per_s))


def reduce_scatter_all_gather_s(nbytes: float, *, scatter_bytes_per_s: float, gather_bytes_per_s: float) -> float:
    """Return S/X of a reduce-scatter and then an all-gather, each at its own best rate, neither waiting for latency.

    One after the other they use every link twice as long as trees that do both at once, where a device's parts differ.
    """
    return nbytes / scatter_bytes_per_s + nbytes / gather_bytes_per_s


def one_shot_s(nbytes: float, *, count: int, port_bytes_per_s: float, alpha_s: float) -> float:
    """Return T = alpha + (n − 1)·S/B: everyone sends everything to everyone, through a port of B bytes per second.

    >>> one_shot_s(1e9, count=3, port_bytes_per_s=1e9, alpha_s=0.0)
    2.0
    """
    return alpha_s + (count - 1) * nbytes / port_bytes_per_s


def two_shot_s(nbytes: float, *, count: int, port_bytes_per_s: float, alpha_s: float) -> float:
    """Return T = 2·(alpha + (n − 1)·S/(n·B)): everyone reduces a part and sends it to everyone.

    >>> two_shot_s(2e9, count=2, port_bytes_per_s=1e9, alpha_s=0.0)
    2.0
    """
    return 2 * (alpha_s + (count - 1) * nbytes / (count * port_bytes_per_s))


def star_s(nbytes: float, *, count: int, port_bytes_per_s: float, alpha_s: float, num_chunks: int = 1) -> float:
    """Return T of everything to one device and back, its port shared by n − 1 copies: ``pipelined_tree_s`` of depth 1.

    >>> star_s(1e9, count=5, port_bytes_per_s=1e9, alpha_s=0.0)
    8.0
    """
    rate = port_bytes_per_s / max(count - 1, 1)
    return pipelined_tree_s(nbytes, depth=1, bytes_per_s=rate, alpha_s=alpha_s, num_chunks=num_chunks)


def two_level_s(nbytes: float, *, count: int, link_bytes_per_s: float, alpha_s: float) -> float:
    """Return T of TensorFlow's hierarchical copy, its four phases one after another, on links between all pairs.

    Each group's copies to its head go side by side; then one copy across, one back, and the copies down.

    >>> two_level_s(1e9, count=8, link_bytes_per_s=1e9, alpha_s=0.0)
    4.0
    """
    levels = 2 if count > 2 else 1  # noqa: PLR2004 - two devices are two groups of one
    return 2 * levels * (alpha_s + nbytes / link_bytes_per_s)


def in_switch_s(nbytes: float, *, count: int, port_bytes_per_s: float, alpha_s: float) -> float:
    """Return T of a reduction in the switch, as NVLink SHARP's: each port carries (n + 1)/n of the values each way.

    Its bound, B/(1 + 1/n), is of another class than that of trees, whose devices do the folding.

    >>> in_switch_s(8e9, count=8, port_bytes_per_s=1e9, alpha_s=0.0)
    9.0
    """
    return 2 * alpha_s + nbytes * (1 + 1 / count) / port_bytes_per_s
