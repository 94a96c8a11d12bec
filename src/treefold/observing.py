"""Logs what is chosen, what is slow and what is called, and marks calls in the profilers of frameworks."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from treefold.dtypes import itemsize
from treefold.keyed import BoundedCache
from treefold.plan.ir import Role

if TYPE_CHECKING:
    from treefold.plan import Plan

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

LOG = logging.getLogger("treefold")
LOG.addHandler(logging.NullHandler())  # without it, Python would print warnings of programs that configure no logging

_VARIABLE = "TREEFOLD_PROFILE"
#: The context managers that mark a range in a profiler, by the module that has them. All take the range's name.
_RANGES = {
    "torch.autograd.profiler": "record_function",
    "tensorflow.python.profiler.trace": "Trace",
    "jax.profiler": "TraceAnnotation",
}
_DIGITS = 16


class Observer:
    """The switch for observed calls. The fast path reads ``is_on``, and pays for nothing else while it is False."""

    def __init__(self) -> None:
        """Start off."""
        self.is_on = False
        #: The number of ``profile`` blocks that threads are in.
        self.profiles = 0
        self._lock = threading.RLock()

    def look(self, entered: int = 0) -> None:
        """Decide again whether calls are observed; ``entered``: 1 or -1 where a ``profile`` block begins or ends."""
        with self._lock:
            self.profiles += entered
            self.is_on = self.profiles > 0 or LOG.isEnabledFor(logging.DEBUG)


OBSERVER = Observer()


def _set_level(level: int | str) -> None:
    type(LOG).setLevel(LOG, level)
    OBSERVER.look()


# Asking the logger costs each call 50 ns. So its own level is noticed here, and the root's with each new plan.
LOG.setLevel = _set_level  # type: ignore[method-assign]
OBSERVER.look(os.environ.get(_VARIABLE, "0") not in {"", "0"})


@contextlib.contextmanager
def profile() -> Iterator[None]:
    """Mark every call of ops and groups in the profilers of PyTorch, TensorFlow and JAX inside the ``with`` block.

    The name of a range has the collective, the reduce op, the bytes of one replica, and the first 16 digits of the
    plan's digest. Only frameworks that are loaded get ranges, and only while their own profiler runs. The block counts
    for all threads of the process. ``TREEFOLD_PROFILE=1`` in the environment does the same for the whole program.

    >>> import treefold
    >>> with treefold.profile():
    ...     total, _ = treefold.all_reduce([1.0, 2.0])
    """
    OBSERVER.look(1)
    try:
        yield
    finally:
        OBSERVER.look(-1)


def observed(run: Callable[_Given, _Result], words: str) -> Callable[_Given, _Result]:
    """Return a function that calls ``run`` inside a range of each loaded profiler, then logs how long it took."""
    name = f"treefold.{words}"

    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        began = time.perf_counter()
        try:
            with contextlib.ExitStack() as ranges:
                for module, kind in _RANGES.items() if OBSERVER.profiles else ():
                    mark = getattr(sys.modules.get(module), kind, None)  # None while another thread imports it
                    if mark is not None:
                        ranges.enter_context(mark(name))
                return run(*args, **kwargs)
        finally:
            LOG.debug("%s: %.1f us", name, (time.perf_counter() - began) * 1e6)

    return call


#: The words for a plan, by its identity. The entry holds the plan, so that no other can get the same identity.
_words: BoundedCache[int, tuple[Plan, str]] = BoundedCache(64)


def words_of(plan: Plan | None, op: str) -> str:
    """Return the words for one call: collective, reduce op, bytes of one replica, digest of the plan.

    Args:
        plan: The plan that runs; None where ranks compare a call that they have not planned yet.
        op: The name of the reduce op; empty for a call that only moves values.

    """
    if plan is None:
        return f"agree {op}, not planned yet"
    _, words = _words.made(id(plan), lambda: (plan, _amount(plan)))
    return f"{' '.join(filter(None, (plan.collective, op)))}, {words}"


def _amount(plan: Plan) -> str:
    sizes: dict[int, int] = {}
    for buffer in plan.buffers:
        if buffer.role is Role.INPUT:
            nbytes = buffer.length * itemsize(plan.leaves[buffer.leaf].dtype)
            sizes[buffer.leaf] = max(nbytes, sizes.get(buffer.leaf, 0))
    return f"{sum(sizes.values())} bytes, plan {plan.digest[:_DIGITS]}"


def announced(plan: Plan) -> Plan:
    """Return a plan that was just made, after logging it."""
    OBSERVER.look()
    if LOG.isEnabledFor(logging.INFO):
        LOG.info("plan %s: %r, executor %s %s", plan.digest[:_DIGITS], plan, plan.executor, plan.kernel)
    return plan


def warn(sentence: str, stacklevel: int = 1) -> None:
    """Log what is slow or missing, and issue it as a ``RuntimeWarning``."""
    LOG.warning(sentence)
    warnings.warn(sentence, RuntimeWarning, stacklevel=stacklevel + 1)
