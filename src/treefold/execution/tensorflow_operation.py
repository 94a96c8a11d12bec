"""The fold as an operation of TensorFlow's own graphs: the native kernel, without a call into Python.

TensorFlow runs it as soon as its inputs are there, beside others.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_library

from treefold.compiled import HAS_NATIVE
from treefold.dtypes import FOLDABLE
from treefold.execution import native
from treefold.fold import Fold

if HAS_NATIVE:
    from treefold._native import TENSORFLOW_FUNCTIONS, register_fold

_LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_framework.2.dylib")


# As calls into Python: without this a function could not even be called under a tape, whatever else it returns.
with contextlib.suppress(KeyError):  # this module was loaded before
    tf.no_gradient("TreefoldFold")


def serves(dtype: str, fold: Fold) -> bool:
    """Tell whether the operation is there, and folds arrays of ``dtype``."""
    return dtype in FOLDABLE and fold.weights is None and fold.accumulation_fn is None and ensure_registered()


@functools.cache
def ensure_registered() -> bool:
    """Register the operation, and tell whether TensorFlow has it: its library may lack the interface for kernels."""
    if not HAS_NATIVE:
        return False
    found = [path for name in _LIBRARIES if (path := Path(tf.sysconfig.get_lib(), name)).exists()]
    try:
        library = ctypes.CDLL(str(found[0]))  # the one that TensorFlow has loaded
        functions = [getattr(library, name) for name in TENSORFLOW_FUNCTIONS]
    except (AttributeError, IndexError, OSError):
        return False
    register_fold([ctypes.cast(function, ctypes.c_void_p).value for function in functions], native.level())
    return True


def folded(arrays: Sequence[Any], fold: Fold, dtype: str, device: str) -> Any:
    """Return the fold of tensors of one shape and ``dtype``, as a symbolic tensor on ``device``."""
    with tf.device(device):
        return op_def_library.apply_op(
            "TreefoldFold",
            contributions=list(arrays),
            R=tf.as_dtype(fold.result_dtype(dtype)),
            dtype=native.DTYPES[dtype],
            op=native.OPS[fold.op.name],
            accumulate=native.ACCUMULATIONS[fold.accumulate],
        )
