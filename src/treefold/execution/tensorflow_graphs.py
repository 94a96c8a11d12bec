"""The fold in TensorFlow's graphs: an operation of our own for each leaf, or one call into Python for all.

The operation is the native kernel, which TensorFlow runs beside other operations as soon as its inputs are there.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_library

from treefold.backends import HostArray
from treefold.backends.numpy import NumpyBackend
from treefold.backends.tensorflow_calls import call_numpy
from treefold.compiled import HAS_NATIVE
from treefold.dtypes import FOLDABLE
from treefold.execution import native
from treefold.execution.actions import LeafActions, leaf_actions
from treefold.execution.host_memory import HostExecutor, output_devices
from treefold.execution.interface import Operand, Results
from treefold.execution.native import new_result
from treefold.fold import Fold
from treefold.plan import Plan
from treefold.plan.ir import Goal, Role

if HAS_NATIVE:
    from treefold._native import TENSORFLOW_FUNCTIONS, register_fold

_LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_framework.2.dylib")


# Declared as for calls into Python: else a function with it could not be called under a tape at all.
with contextlib.suppress(KeyError):  # this module was loaded before
    tf.no_gradient("TreefoldFold")


def serves(dtype: str, fold: Fold) -> bool:
    """Return whether the operation is available, and folds arrays of ``dtype``."""
    return dtype in FOLDABLE and fold.weights is None and fold.accumulation_fn is None and ensure_registered()


@functools.cache
def ensure_registered() -> bool:
    """Register the operation; return whether TensorFlow has it: its library may lack the interface for kernels."""
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


_HOST, _NUMPY = HostExecutor(), NumpyBackend()


def reduced(plan: Plan, inputs: Sequence[Operand], fold: Fold | None) -> Results:
    """Return each leaf's result per component of the destination, as symbolic tensors."""
    leaves = leaf_actions(plan, inputs, fold)
    devices = output_devices(plan)
    if all(_is_served(leaf) for leaf in leaves):
        parts = zip(leaves, inputs, devices, strict=True)
        made = [_by_operations(leaf, operand, ends[0]) for leaf, operand, ends in parts]
    else:
        made = _by_call(plan, leaves, inputs, fold)
    return [
        tuple([operand.backend.copy_to(result, device) for device in ends])
        for operand, result, ends in zip(inputs, made, devices, strict=True)
    ]


def _is_served(leaf: LeafActions) -> bool:
    """Return whether operations give the bits of host memory: TensorFlow's move numbers, and treefold's folds them."""
    if leaf.leaf.goal is not Goal.FOLD or leaf.fold is None:
        return not leaf.divides_rows
    return serves(leaf.leaf.dtype, leaf.fold)


def _by_operations(leaf: LeafActions, operand: Operand, device: str) -> Any:
    if leaf.leaf.goal is Goal.FOLD and leaf.fold is not None:
        return folded(operand.arrays, leaf.fold, leaf.leaf.dtype, device)
    return operand.backend.reshape(leaf.result(operand.arrays), operand.shape)


def _by_call(plan: Plan, leaves: Sequence[LeafActions], inputs: Sequence[Operand], fold: Fold | None) -> list[Any]:
    """Return one result of each leaf, made by the executor of host memory when the graph runs."""

    def reduce(*arrays: Any) -> list[HostArray]:
        given = map(np.asarray, arrays)
        operands = [Operand(_NUMPY, tuple([next(given) for _ in one.arrays]), one.shape) for one in inputs]
        ends = [(new_result(one.shape, np.dtype(dtype)),) for one, dtype in zip(inputs, dtypes, strict=True)]
        _HOST.run(plan, operands, fold, ends)
        return [end for [end] in ends]

    dtypes = [leaf.dtype(Role.OUTPUT) for leaf in leaves]
    made = call_numpy(reduce, [array for one in inputs for array in one.arrays], list(map(tf.as_dtype, dtypes)))
    return [tf.ensure_shape(result, one.shape) for result, one in zip(made, inputs, strict=True)]
