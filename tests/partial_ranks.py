"""Sums of ranks: the contributions, the result on each rank, and that of one process."""

import hashlib
from unittest import mock

import numpy as np
import partial_cases

import treefold
from treefold.backends.numpy_partial import Factor
from treefold.partials import Mean, partial_sum
from treefold.partials.partial_sum import PartialSum, Pieces, add_scattered

#: Values that all ranks add together; 12 so that 1, 2, 3, 4 and 6 ranks have as many each.
VALUES = 12


def values():
    """Return the values and weights of all ranks: hostile numbers in every mode, integers, and flags."""
    random = np.random.default_rng(2)
    made = [
        {dtype: partial_cases.hostile(random, dtype, 700) for dtype in partial_cases.DTYPES}
        | {"step": np.int64([number, -(2**62)]), "on": np.bool_([True]), "name": "a"}
        for number in range(VALUES)
    ]
    return made, [int(weight) for weight in random.integers(1, 5000, VALUES)]


def sha(tree):
    leaves, _ = treefold.values.flatten(tree)
    parts = [leaf.encode() if isinstance(leaf, str) else np.asarray(leaf).tobytes() for leaf in leaves]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def alone():
    mean = Mean()
    for value, weight in zip(*values(), strict=True):
        mean.add(value, weight=weight)
    return sha(mean.result())


def mean_over(group):
    """Add this rank's values, and return the SHA of the result over all ranks, by one exchange, and in parts."""
    mean = Mean()
    made, weights = values()
    mean.add(made[0], weight=0)  # ranks may have nothing else
    for number in range(group.rank, VALUES, group.size):
        mean.add(made[number], weight=weights[number])
    small = sha(mean.result(group=group))
    with mock.patch.multiple(partial_sum, _SMALL=0, _EXCHANGED=4):  # two parts, of which some ranks have no block
        return [small, sha(mean.result(group=group))]


def scattered_over(group):
    """Return the SHA of sums that the ranks hold in parts, after some reduce-scatters that stay partial."""
    made, weights = values()
    length = -(-700 // group.size)
    part = PartialSum("float32", length)
    for first in range(0, VALUES, group.size):
        number = first + group.rank
        padded = np.zeros(length * group.size, np.float32)
        padded[:700] = made[number % VALUES]["float32"]
        given = group.all_gather(np.asarray([weights[number] if number < VALUES else 0]))
        add_scattered(part, padded, [int(weight) << 64 for weight in given], group)
    whole = group.all_gather(part.finish(sum(weights) << 64))
    return hashlib.sha256(np.asarray(whole)[:700].tobytes()).hexdigest()


def scattered_alone():
    made, weights = values()
    total = PartialSum("float32", 700)
    for value, weight in zip(made, weights, strict=True):
        total.add(Pieces.of([value["float32"]]), Factor(weight << 64))
    return hashlib.sha256(total.finish(sum(weights) << 64).tobytes()).hexdigest()


def expected():
    """Return what each rank returns of ``mean_over`` and ``scattered_over``, by one process."""
    return [*[alone()] * 2, scattered_alone()]
