"""Calls from TensorFlow's graphs into Python.

``tf.py_function`` keeps every function alive with the outermost graph, TensorFlow's default graph, which never ends.
Here functions live as long as the graph in which they are traced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_util, script_ops
from tensorflow.python.ops.resource_variable_ops import ResourceVariable
from tensorflow.python.saved_model import save_context

from treefold.backends.tracing import Like


def register(function: Callable[..., Any]) -> str:
    """Return the name by which graphs call a function. The registry does not keep the function alive."""
    known: Any = function
    if not hasattr(known, "_treefold_name"):
        known._treefold_name = script_ops._py_funcs.insert(known)  # noqa: SLF001 - numpy_function's own; it refers weakly to it
    name: str = known._treefold_name  # noqa: SLF001 - an attribute of ours
    return name


def keep_with_graph(function: Callable[..., Any]) -> None:
    """Let a function live as long as the graph that is being traced."""
    for graph in _enclosing_graphs():
        if not hasattr(graph, "_treefold_functions"):
            graph._treefold_functions = []  # noqa: SLF001 - an attribute of ours
        graph._treefold_functions.append(function)  # noqa: SLF001


def is_tracing() -> bool:
    """Return whether a graph is being traced in which calls can be ordered."""
    return not tf.executing_eagerly() and bool(tf.compat.v1.executing_eagerly_outside_functions())


def runs_on_host() -> bool:
    """Return whether the graph being traced will run in this process, by kernels: not by XLA, nor from a file."""
    in_xla = control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    return not in_xla and not save_context.in_save_context()


def is_traced_on_host() -> bool:
    """Return whether a graph is being traced that will run in this process, and may call kernels of others."""
    return is_tracing() and runs_on_host()


def call_numpy(function: Callable[..., Any], tensors: Sequence[Any], types: Sequence[Any]) -> list[Any]:
    """Add a call with NumPy arrays to the graph that is being traced; it has no gradient, and its order is free."""
    keep_with_graph(function)
    return list(tf.raw_ops.PyFuncStateless(input=tensors, token=register(function), Tout=types))


def call_in_order(function: Callable[..., Any], arrays: Sequence[Any], likes: Sequence[Like]) -> list[Any]:
    """Add a call to the graph that is being traced, which comes after all earlier ones and before all later ones.

    TensorFlow keeps reads and writes of one variable in the order of the program, also across branches, loops and
    nested functions. So a call waits for a read of ``_order``, and a write of it waits for the call. The call has no
    gradient.
    """
    order = _order()
    tensors = [tf.stop_gradient(tf.convert_to_tensor(array)) for array in arrays]
    types = [_type(like) for like in likes]
    called = script_ops.EagerFunc(function, types, is_grad_func=False)
    keep_with_graph(called)
    with tf.device("cpu:0"):
        with tf.control_dependencies([order.read_value()]):
            made = tf.raw_ops.EagerPyFunc(input=tensors, token=register(called), Tout=types, is_async=False)
        with tf.control_dependencies(made if types else [made]):
            order.assign(0)
    return [_with_shape(array, like) for array, like in zip(made if types else [], likes, strict=True)]


def _type(like: Like) -> Any:
    own = tf.as_dtype(like.array.dtype).base_dtype
    return own if like.fold is None else tf.as_dtype(like.fold.result_dtype(own.name))


def _with_shape(made: Any, like: Like) -> Any:
    shape = tf.convert_to_tensor(like.array).shape
    if like.axis is not None and shape.rank is not None:
        lengths = shape.as_list()
        lengths[like.axis] = None
        shape = tf.TensorShape(lengths)
    made.set_shape(shape)
    return tf.stop_gradient(made)


@functools.cache
def _order() -> Any:
    """Return the variable that orders calls by its reads and writes; strategies would copy a ``tf.Variable``."""
    with tf.init_scope(), tf.device("cpu:0"):
        return ResourceVariable(0, trainable=False, name="treefold_order")


def _enclosing_graphs() -> Iterator[Any]:
    """Yield the graph that is being traced and those around it: any of them may be kept.

    The default graph around eagerly called functions is left out: it calls nothing, and never ends.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    while isinstance(graph, FuncGraph):
        yield graph
        graph = graph.outer_graph
    if not tf.compat.v1.executing_eagerly_outside_functions():
        yield graph
