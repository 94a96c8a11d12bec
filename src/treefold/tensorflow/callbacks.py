"""Calls from TensorFlow's graphs into Python, which live as long as the graphs that make them.

``tf.numpy_function`` registers a new function at every trace. Here a function is registered once for all traces that
need the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from treefold.backends.tensorflow_calls import keep_with_graph, register
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
            registered = (function, register(function))
            self._registered.put(key, registered)
        function, token = registered
        keep_with_graph(function)
        return list(tf.raw_ops.PyFuncStateless(input=tensors, token=token, Tout=types, name="TreefoldReduce"))
