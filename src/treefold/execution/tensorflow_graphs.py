"""One pass over host memory in TensorFlow's graphs: an operation for each leaf, or one call into Python for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from treefold.backends import HostArray
from treefold.backends.numpy import NumpyBackend
from treefold.backends.tensorflow_calls import call_numpy
from treefold.execution import tensorflow_operation
from treefold.execution.actions import LeafActions, leaf_actions
from treefold.execution.host_memory import HostExecutor, output_devices
from treefold.execution.native import new_result
from treefold.execution.operands import Operand, Results
from treefold.fold import Fold
from treefold.plan import Plan
from treefold.plan.ir import Goal, Role

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
    """Tell whether operations give the bits of host memory: TensorFlow's move numbers, and treefold's folds them."""
    if leaf.leaf.goal is not Goal.FOLD or leaf.fold is None:
        return not leaf.divides_rows
    return tensorflow_operation.serves(leaf.leaf.dtype, leaf.fold)


def _by_operations(leaf: LeafActions, operand: Operand, device: str) -> Any:
    if leaf.leaf.goal is Goal.FOLD and leaf.fold is not None:
        return tensorflow_operation.folded(operand.arrays, leaf.fold, leaf.leaf.dtype, device)
    return operand.backend.reshape(leaf.result(operand.arrays), operand.shape)


def _by_call(plan: Plan, leaves: Sequence[LeafActions], inputs: Sequence[Operand], fold: Fold | None) -> list[Any]:
    """Return one result of each leaf, made by the executor of host memory from what the tensors hold by then."""

    def reduce(*arrays: Any) -> list[HostArray]:
        given = map(np.asarray, arrays)
        operands = [Operand(_NUMPY, tuple([next(given) for _ in one.arrays]), one.shape) for one in inputs]
        ends = [(new_result(one.shape, np.dtype(dtype)),) for one, dtype in zip(inputs, dtypes, strict=True)]
        _HOST.run(plan, operands, fold, ends)
        return [end for [end] in ends]

    dtypes = [leaf.dtype(Role.OUTPUT) for leaf in leaves]
    made = call_numpy(reduce, [array for one in inputs for array in one.arrays], list(map(tf.as_dtype, dtypes)))
    return [tf.ensure_shape(result, one.shape) for result, one in zip(made, inputs, strict=True)]
