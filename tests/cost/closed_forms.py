"""Closed forms: the seconds of a method on a machine of equal links, without folding and launching.

Arguments have one meaning here. There are ``nbytes`` (S) of one replica's values and ``count`` devices (n). One link
carries ``bytes_per_s`` (c) in one direction. One copy over one route takes ``alpha_s``.
"""

import math


def pipelined_tree_s(nbytes, *, depth, bytes_per_s, alpha_s, num_chunks):
    """Return T = (2D + k − 1)·(alpha + m/(k·r)): a pack of m bytes up a tree of depth D and down again in k chunks.

    The rate r at which the pack may use its links is ``bytes_per_s``.
    """
    return (2 * depth + num_chunks - 1) * (alpha_s + nbytes / (num_chunks * bytes_per_s))


def best_chunk_bytes(nbytes, *, depth, bytes_per_s, alpha_s):
    """Return chunk* = sqrt(m·r·alpha/(2D − 1)), at which ``pipelined_tree_s`` is least; at most the pack."""
    return min(float(nbytes), math.sqrt(nbytes * bytes_per_s * alpha_s / (2 * depth - 1)))


def best_tree_s(nbytes, *, depth, bytes_per_s, alpha_s):
    """Return T* = (sqrt((2D − 1)·alpha) + sqrt(m/r))², the least of ``pipelined_tree_s`` over all chunk sizes.

    Where the pack would be less than a chunk, it travels whole: T = 2D·(alpha + m/r).
    """
    if nbytes * (2 * depth - 1) <= bytes_per_s * alpha_s:  # chunk* would be more than the pack
        return 2 * depth * (alpha_s + nbytes / bytes_per_s)
    return (math.sqrt((2 * depth - 1) * alpha_s) + math.sqrt(nbytes / bytes_per_s)) ** 2


def ring_s(nbytes, *, count, bytes_per_s, alpha_s):
    """Return T = 2·(n − 1)·(alpha + S/(n·c)): n packs, each around the ring to its root and around once more."""
    return 2 * (count - 1) * (alpha_s + nbytes / (count * bytes_per_s))


def one_shot_s(nbytes, *, count, port_bytes_per_s, alpha_s):
    """Return T = alpha + (n − 1)·S/B: everyone sends everything to everyone, through a port of B bytes per second."""
    return alpha_s + (count - 1) * nbytes / port_bytes_per_s


def two_shot_s(nbytes, *, count, port_bytes_per_s, alpha_s):
    """Return T = 2·(alpha + (n − 1)·S/(n·B)): everyone reduces a part and sends it to everyone."""
    return 2 * (alpha_s + (count - 1) * nbytes / (count * port_bytes_per_s))


def star_s(nbytes, *, count, port_bytes_per_s, alpha_s, num_chunks=1):
    """Return ``pipelined_tree_s`` of depth 1: everything to one device and back, its port shared by n − 1 copies."""
    rate = port_bytes_per_s / max(count - 1, 1)
    return pipelined_tree_s(nbytes, depth=1, bytes_per_s=rate, alpha_s=alpha_s, num_chunks=num_chunks)


def two_level_s(nbytes, *, count, link_bytes_per_s, alpha_s):
    """Return T of TensorFlow's hierarchical copy, its four phases one after another, on links between all pairs.

    Each group's copies to its head go side by side; then one copy across, one back, and the copies down.
    """
    levels = 2 if count > 2 else 1
    return 2 * levels * (alpha_s + nbytes / link_bytes_per_s)


def in_switch_s(nbytes, *, count, port_bytes_per_s, alpha_s):
    """Return T of a reduction in the switch, as NVLink SHARP's: each port carries (n + 1)/n of the values each way.

    Its bound, B/(1 + 1/n), is of another class than that of trees, in which devices fold.
    """
    return 2 * alpha_s + nbytes * (1 + 1 / count) / port_bytes_per_s
