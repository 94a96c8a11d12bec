"""Inputs that name their owner, and values at the edges of a dtype.

If all replicas bring ones, a test cannot see that a replica was lost or counted twice. Here replica ``r`` brings 2**r
times a value that depends on the position. A wrong sum then shows which replica is wrong, and a shifted one where.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from treefold.dtypes import COMPLEX, INTEGERS

Array = npt.NDArray[Any]

#: The pattern repeats after this many positions: a prime, so that no shape lines it up with its axes.
_PERIOD = 7


def owned(replica: int, shape: tuple[int, ...], dtype: str = "float32") -> Array:
    """Return replica ``replica``'s contribution: 2**replica times 1, 2 … 7, 1, 2 … in row-major order.

    Complex values have the negative of that as imaginary part. Integers wrap. A bool is True where replica ≡ position
    modulo 7. The sum of n replicas is exact if the dtype holds 7·2**n: n ≤ 8 for float16, 5 for bfloat16, 21 for
    float32. Replicas from 14 on are too large for float16.

    Args:
        replica: The replica's number, from 0.
        shape: The shape of the result.
        dtype: Its dtype, by NumPy's name.

    Returns:
        A new array.

    >>> owned(3, (2, 4), "int32")
    array([[ 8, 16, 24, 32],
           [40, 48, 56,  8]], dtype=int32)
    """
    positions = np.arange(math.prod(shape)) % _PERIOD
    if dtype == "bool":
        return np.equal(positions, replica % _PERIOD).reshape(shape)
    return _as_dtype((positions + 1) * 2**replica, dtype).reshape(shape)


def owned_sum(num_replicas: int, shape: tuple[int, ...], dtype: str = "float32") -> Array:
    """Return the sum of the contributions of ``num_replicas`` replicas: 2**n - 1 times the pattern.

    Args:
        num_replicas: The number n of replicas.
        shape: The shape of the result.
        dtype: Its dtype, by NumPy's name.

    Returns:
        A new array, equal to the sum of ``owned(0, …)`` to ``owned(n - 1, …)``.

    >>> owned_sum(3, (4,), "uint8")
    array([ 7, 14, 21, 28], dtype=uint8)
    """
    positions = np.arange(math.prod(shape)) % _PERIOD
    return _as_dtype((positions + 1) * (2**num_replicas - 1), dtype).reshape(shape)


def special_values(dtype: str) -> Array:
    """Return the values of a dtype at which arithmetic goes wrong first, the finite ones in front.

    Floats: both zeros, the smallest and the largest denormal, the smallest normal number, one and its neighbours, the
    largest number, all with both signs, then infinities and NaN. Complex: each of these as real part, another as
    imaginary part. Integers: around 0, and at both ends. 64-bit integers also 2**53 + 1, which no float64 holds.
    """
    if dtype == "bool":
        return np.array([False, True])
    if dtype in COMPLEX:
        parts = special_values("float32" if dtype == "complex64" else "float64")
        finite = parts[np.isfinite(parts)]
        pairs = [_paired(finite, np.roll(finite, 5)), _paired(parts, np.roll(parts, 3))]
        return np.concatenate(pairs).astype(dtype)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        near = [0, 1, 2, 3, -1, -2, 2**53 + 1, info.max, info.max - 1, info.min, info.min + 1, info.max // 2]
        return np.array([value for value in near if info.min <= value <= info.max], dtype)
    return _special_floats(dtype)


def _special_floats(dtype: str) -> Array:
    kind = np.dtype(dtype)
    bits = np.dtype(f"uint{8 * kind.itemsize}")
    one, infinity = (int(np.array(value, kind).view(bits)) for value in (1.0, np.inf))
    normal = min(one & -one, infinity & -infinity)  # the lowest bit of the exponent: both have only exponent bits
    positive = np.array([0, 1, 2, normal - 1, normal, one - 1, one, one + 1, infinity - 1], bits).view(kind)
    return np.concatenate([positive, -positive, np.array([np.inf, -np.inf, np.nan], kind)])


def mixed_values(seed: int, shape: tuple[int, ...], dtype: str, *, is_finite: bool = False) -> Array:
    """Return values in which every kind meets every other: special ones, random bits, and ordinary ones.

    The mixture depends on ``seed``, too. Random bits reach every exponent.

    Args:
        seed: The seed of the random numbers.
        shape: The shape of the result.
        dtype: Its dtype, by NumPy's name.
        is_finite: Whether infinities and NaN are left out.

    Returns:
        A new array. The same arguments give the same bits.

    """
    rng = np.random.default_rng(seed)
    size = math.prod(shape)
    specials = special_values(dtype)
    kinds = (
        specials[rng.integers(len(specials), size=size)],
        _random_bits(rng, size, dtype),
        _ordinary(rng, size, dtype),
    )
    share = rng.dirichlet((0.5, 0.5, 0.5))
    chosen = rng.choice(3, size=size, p=share)
    values = np.select([chosen == 0, chosen == 1], kinds[:2], kinds[2]) if size else kinds[2]
    values = values.astype(dtype, copy=False)
    if is_finite and dtype not in INTEGERS and dtype != "bool":
        with np.errstate(invalid="ignore"):  # random bits may be a signalling NaN
            wide = values.astype("complex128" if dtype in COMPLEX else "float64")
        values = np.where(np.isfinite(wide), values, kinds[2]).astype(dtype, copy=False)
    return values.reshape(shape)


def _random_bits(rng: np.random.Generator, size: int, dtype: str) -> Array:
    if dtype == "bool":
        return rng.integers(2, size=size).astype(bool)
    kind = np.dtype(dtype)
    return np.frombuffer(rng.bytes(size * kind.itemsize), kind)


def _ordinary(rng: np.random.Generator, size: int, dtype: str) -> Array:
    if dtype == "bool" or dtype in INTEGERS:
        return rng.integers(0, 100, size).astype(dtype)
    if dtype in COMPLEX:
        return _paired(rng.normal(size=size), rng.normal(size=size)).astype(dtype)
    return rng.normal(size=size).astype(dtype)


def _paired(real: Array, imaginary: Array) -> Array:
    """Return complex numbers; adding ``1j * imaginary`` would lose signs of zero and make NaN of infinities."""
    pairs = np.empty(real.shape, "complex128")
    pairs.real, pairs.imag = real, imaginary
    return pairs


def _as_dtype(values: Array, dtype: str) -> Array:
    """Return whole numbers in a dtype; complex ones with the negative as imaginary part."""
    if dtype in COMPLEX:
        return _paired(values, -values).astype(dtype)
    return values.astype(dtype)
