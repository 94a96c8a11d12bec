"""The table of dtypes, by NumPy's names: one place for the facts that hold in every framework."""

from __future__ import annotations

import functools
import importlib
from typing import Any, NamedTuple

import numpy as np

# A MEAN of integers is float by TensorFlow's table (math_ops._TRUEDIV_TABLE). The order is the native core's, which
# numbers dtypes by their rows. Dtypes of the kind "travels" are moved only, without arithmetic. A "-" means none.
_TABLE = """
    name             kind       bits  accumulator  mean        safetensors  torch          dlpack
    float16          float        16  float32      float16     F16          Half           2
    bfloat16         float        16  float32      bfloat16    BF16         BFloat16       4
    float32          float        32  float64      float32     F32          Float          2
    float64          float        64  float64      float64     F64          Double         2
    int8             signed        8  int64        float32     I8           Char           0
    int16            signed       16  int64        float32     I16          Short          0
    int32            signed       32  int64        float64     I32          Int            0
    int64            signed       64  int64        float64     I64          Long           0
    uint8            unsigned      8  uint64       float32     U8           Byte           1
    uint16           unsigned     16  uint64       float32     U16          -              1
    uint32           unsigned     32  uint64       float64     U32          -              1
    uint64           unsigned     64  uint64       float64     U64          -              1
    complex64        complex      64  complex128   complex64   C64          ComplexFloat   5
    complex128       complex     128  complex128   complex128  -            ComplexDouble  5
    bool             flag          8  -            -           BOOL         Bool           6
    float8_e4m3fn    travels       8  -            -           F8_E4M3      -              10
    float8_e4m3fnuz  travels       8  -            -           F8_E4M3FNUZ  -              11
    float8_e5m2      travels       8  -            -           F8_E5M2      -              12
    float8_e5m2fnuz  travels       8  -            -           F8_E5M2FNUZ  -              13
    float8_e8m0fnu   travels       8  -            -           F8_E8M0      -              -
"""


class Dtype(NamedTuple):
    """One row of the table; a field is None where it has a "-".

    Args:
        name: NumPy's name, or that of ml_dtypes.
        kind: Float, signed, unsigned, complex, flag, or travels.
        bits: The bits of an element.
        accumulator: The dtype in which contributions are added and multiplied.
        mean: The dtype of a MEAN.
        safetensors: The code in a file's header.
        torch: The storage in a PyTorch file; dtypes without one are written as untyped storages.
        dlpack: The code of its kind.

    """

    name: str
    kind: str
    bits: int
    accumulator: str | None
    mean: str | None
    safetensors: str | None
    torch: str | None
    dlpack: int | None

    @property
    def is_numpys(self) -> bool:
        """Whether NumPy itself has the dtype; the package ml_dtypes has the others."""
        return self.kind != "travels" and self.name != "bfloat16"


def _row(line: str) -> Dtype:
    name, kind, bits, *rest = line.split()
    accumulator, mean, safetensors, torch, dlpack = [None if word == "-" else word for word in rest]
    return Dtype(name, kind, int(bits), accumulator, mean, safetensors, torch, int(dlpack) if dlpack else None)


DTYPES = {row.name: row for row in map(_row, _TABLE.strip().splitlines()[1:])}


def _of_kind(*kinds: str) -> tuple[str, ...]:
    return tuple(row.name for row in DTYPES.values() if row.kind in kinds)


FLOATS, SIGNED, UNSIGNED, COMPLEX, TRAVELLING = map(_of_kind, ("float", "signed", "unsigned", "complex", "travels"))
INTEGERS = SIGNED + UNSIGNED
#: Dtypes with sums and products, and all dtypes that are folded.
REDUCIBLE = FLOATS + INTEGERS + COMPLEX
FOLDABLE = (*REDUCIBLE, "bool")
#: 16-bit floats: partial folds of them stay in float32 until they are rounded, once.
HALVES = tuple(name for name in FLOATS if DTYPES[name].bits == 16)  # noqa: PLR2004 - a width
#: Sums of these do not fit 64 bits, so for a MEAN their contributions must meet unfolded.
WIDE_INTEGERS = tuple(name for name in INTEGERS if DTYPES[name].accumulator == name)
#: Partial sums of these can overflow; those of float16 fit float32, and those of float32 fit float64.
OVERFLOWING = ("bfloat16", "float64")
#: The dtype of either part of a complex number.
REAL = {name: f"float{DTYPES[name].bits // 2}" for name in COMPLEX}


def itemsize(dtype: str) -> int:
    """Return the bytes of one element; 1 for dtypes that only travel and are not in the table.

    >>> itemsize("bfloat16"), itemsize("complex128")
    (2, 16)
    """
    return DTYPES[dtype].bits // 8 if dtype in DTYPES else 1


@functools.cache
def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Return NumPy's dtype for a name in the table.

    Raises:
        ImportError: It is a dtype of ml_dtypes, which is not installed.

    """
    return np.dtype(dtype if DTYPES[dtype].is_numpys else getattr(importlib.import_module("ml_dtypes"), dtype))
