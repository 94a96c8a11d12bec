"""Calls from TensorFlow's graphs into Python, which live as long as the graphs that make them.

``tf.numpy_function`` registers a new function at every trace, and ties it to the outermost graph, TensorFlow's default
graph, which never ends. Here a function is registered once for all traces that need the same one, and tied to the
graphs that it is traced in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import script_ops

from treefold.bounded_cache import BoundedCache

_MAX_FUNCTIONS = 64


class Callbacks:
    """The functions that graphs call, by everything that they depend on, with TensorFlow's names for them.

    Copies begin empty: a name is worth nothing in another process, and graphs keep the functions that they call.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self._registered: BoundedCache[Hashable, tuple[Callable[..., list[Any]], str]] = BoundedCache(_MAX_FUNCTIONS)

    def call(
        self,
        key: Hashable,
        make: Callable[[], Callable[..., list[Any]]],
        tensors: Sequence[Any],
        types: Sequence[Any],
    ) -> list[Any]:
        """Add a call to the graph that is being traced: of the function of ``key``, made now if it is not there."""
        registered = self._registered.get(key)
        if registered is None:
            function = make()
            # TensorFlow's registry refers weakly to it.
            registered = (function, script_ops._py_funcs.insert(function))  # noqa: SLF001 - numpy_function's own
            self._registered.put(key, registered)
        function, token = registered
        for graph in _enclosing_graphs():
            if not hasattr(graph, "_treefold_functions"):
                graph._treefold_functions = []  # noqa: SLF001 - an attribute of ours
            graph._treefold_functions.append(function)  # noqa: SLF001
        return list(tf.raw_ops.PyFuncStateless(input=tensors, token=token, Tout=types, name="TreefoldReduce"))


def _enclosing_graphs() -> Iterator[Any]:
    """Yield the graph that is being traced and those around it: any of them may be the one that is kept.

    The default graph around functions that are called eagerly is left out: it calls nothing, and never ends.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    while isinstance(graph, FuncGraph):
        yield graph
        graph = graph.outer_graph
    if not tf.compat.v1.executing_eagerly_outside_functions():
        yield graph
