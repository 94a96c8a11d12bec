"""The dtypes that can be reduced, by NumPy's names, whatever the framework."""

from __future__ import annotations

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
INTEGERS = SIGNED + UNSIGNED
REDUCIBLE = FLOATS + INTEGERS + COMPLEX

_BITS = {name: int(name.lstrip("abcdefghijklmnopqrstuvwxyz")) for name in REDUCIBLE} | {"bfloat16": 16, "bool": 8}


def itemsize(dtype: str) -> int:
    """Return the bytes of one element; 1 for dtypes that only travel and are not in the table.

    >>> itemsize("bfloat16"), itemsize("complex128")
    (2, 16)
    """
    return _BITS.get(dtype, 8) // 8
