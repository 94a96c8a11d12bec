"""A program that interrupts reductions: ``interrupting.py FRAMEWORK FULL FIRST STEP``; prints what went wrong, as JSON.

A signal handler raises at a random moment of a call, with new results or in place. The moment is the end of a timer,
or, to meet locks and other short moments, a random line of treefold. Afterwards the inputs of a new result are
unchanged, the next call of this thread and of another gives the right numbers, and no result memory is lost.
"""

import concurrent.futures
import faulthandler
import functools
import gc
import importlib
import json
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np
from attack import drawing

import treefold
from treefold import HierarchicalCopyAllReduce, PerReplica
from treefold.testing import owned, owned_sum

#: Far beyond what a call takes on a busy machine; whoever waits longer holds a lock that nobody gives back.
PATIENCE_S = 60
LENGTHS = (7, 5_003, 70_001, 400_009)
HALF, FIFTH = 0.5, 0.2
SOON_S = 2e-6  # a timer of 0 never rings
LATER_S = 5e-4  # when the handler is long over
HOME = Path(treefold.__file__).parent
ANYWHERE = frozenset(map(str, HOME.rglob("*.py")))
AT_LOCKS = frozenset(name for name in ANYWHERE if "Lock(" in Path(name).read_text(encoding="utf-8"))
TENSORFLOWS = ("/tensorflow/python/", "/backends/tensorflow.py")


class Interruption(Exception):  # noqa: N818 - what a handler of signals raises is no error
    """The exception of the handler, as a user's would be; nothing in between may catch it."""


class Alarm:
    """A signal at a random moment: raises once, and only while a call runs; perhaps after a reduction of its own."""

    def __init__(self):
        self.kind, self.reduces = None, None
        signal.signal(signal.SIGALRM, self._ring)

    def _ring(self, _, frame):
        # TensorFlow looks its context up in Python and makes an error of its own of what a handler raises there, or
        # reads from address 0: nothing that its callers could mend.
        if any(part in one.f_code.co_filename for one, _ in traceback.walk_stack(frame) for part in TENSORFLOWS):
            signal.setitimer(signal.ITIMER_REAL, LATER_S)
            return
        kind, self.kind = self.kind, None
        if kind is not None:
            if self.reduces is not None:
                self.reduces()
            raise kind

    def interrupts(self, call, set_off, kind, reduces):
        """Tell whether a call was interrupted; what else it raises is passed on. ``set_off`` makes it ring."""
        try:
            self.kind, self.reduces = kind, reduces
            set_off()
            call()
            self.kind = None
        except (Interruption, KeyboardInterrupt) as error:
            del error
            return True
        finally:
            sys.settrace(None)
            signal.setitimer(signal.ITIMER_REAL, 0)
        return False


def ring_after(seconds):
    signal.setitimer(signal.ITIMER_REAL, max(seconds, SOON_S))


def ring_before_line(number, files):
    """Send the signal after this many lines of some files."""
    left = [number]

    def count(_frame, event, _argument):
        left[0] -= event == "line"
        if left[0] < 0:
            sys.settrace(None)
            signal.raise_signal(signal.SIGALRM)
        return count

    sys.settrace(lambda frame, *_: count if frame.f_code.co_filename in files else None)


class Case:
    """One call, drawn from its number."""

    def __init__(self, number, arrays_of, *, are_mutable):
        random = drawing(number)
        self.count, self.length = random.randint(2, 12), random.choice(LENGTHS)
        self.arrays = arrays_of(self.count, self.length)
        self.value = PerReplica(self.arrays)
        self.is_in_place = are_mutable and random.random() < HALF
        # Every fifth is planned anew, and validated the long way.
        self.ops = HierarchicalCopyAllReduce(random.randint(0, 3)) if random.random() < FIFTH else None
        self.kind = random.choice((Interruption, KeyboardInterrupt))
        self.reduces_meanwhile = random.random() < FIFTH
        self.moment = random.random()
        # Lines there are dozens to thousands of in a call, and a few while a lock is held.
        self.line = random.choice(
            (None, None, (int(10 ** random.uniform(0, 3.5)), ANYWHERE), (random.randrange(15), AT_LOCKS))
        )

    def call(self):
        if self.ops is not None:
            self.ops.reduce("sum", self.value, self.value, out=self.value if self.is_in_place else None)
        else:
            treefold.all_reduce(self.arrays, out=self.arrays if self.is_in_place else None)

    def all_reduce(self, arrays):
        if self.ops is None:
            return treefold.all_reduce(arrays)
        return self.ops.reduce("sum", PerReplica(arrays), "cpu:0")

    def inputs_changed(self):
        """Tell whether inputs are other than they were, although the results were to be new."""
        expected = [owned(replica, (self.length,)) for replica in range(self.count)]
        return not self.is_in_place and not all(map(np.array_equal, map(np.asarray, self.arrays), expected))


class Interrupter:
    """Reduces arrays of one framework, is interrupted, and looks at what is left."""

    def __init__(self, framework):
        make = {
            "numpy": lambda: np.array,
            "torch": lambda: lambda array: importlib.import_module("torch").from_numpy(array.copy()),
            "jax": lambda: importlib.import_module("jax.numpy").array,
            "tensorflow": lambda: importlib.import_module("tensorflow").constant,
        }
        self.make = make[framework]()
        self.are_mutable = framework in {"numpy", "torch"}
        self.alarm = Alarm()
        self.thread = concurrent.futures.ThreadPoolExecutor(1)
        for length in LENGTHS:  # the first calls import and plan
            assert self.is_right(treefold.all_reduce, 8, length)
        self.took_s = {length: self._time(length) for length in LENGTHS}

    def _time(self, length):
        arrays = self.arrays(8, length)
        start = time.perf_counter()
        for _ in range(5):
            treefold.all_reduce(arrays)
        return (time.perf_counter() - start) / 5

    def arrays(self, count, length):
        """Return what each replica brings: 2**r times the pattern."""
        return [self.make(owned(replica, (length,))) for replica in range(count)]

    def is_right(self, all_reduce, count, length):
        results = all_reduce(self.arrays(count, length))
        return all(np.array_equal(np.asarray(result), owned_sum(count, (length,))) for result in results)

    def strike(self, number):
        """Interrupt one call; return what is wrong afterwards, "missed" if the call was over before, or nothing."""
        case = Case(number, self.arrays, are_mutable=self.are_mutable)
        set_off = functools.partial(ring_after, case.moment * self.took_s[case.length])
        if case.line is not None:
            set_off = functools.partial(ring_before_line, *case.line)
        right = []
        meanwhile = functools.partial(self.note, right, case.all_reduce) if case.reduces_meanwhile else None
        was_hit = self.alarm.interrupts(case.call, set_off, case.kind, meanwhile)
        if case.inputs_changed():
            return "an input was written"
        if not all(right):
            return "the reduction of the handler is wrong"
        if not self.is_right(case.all_reduce, case.count, case.length):
            return "the next call of this thread is wrong"
        if not self.thread.submit(self.is_right, case.all_reduce, case.count, case.length).result(PATIENCE_S):
            return "the next call of another thread is wrong"
        return None if was_hit else "missed"

    def note(self, right, all_reduce):
        right.append(self.is_right(all_reduce, 3, 5_003))


def main(framework, full, first, step):
    """Interrupt calls until this many were interrupted."""
    interrupter = Interrupter(framework)
    gc.collect()
    used_bytes = treefold.host_memory_info()["used_bytes"]
    wrong, hits, number = [], 0, first
    while hits < full:
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        found = interrupter.strike(number)
        if found != "missed":
            hits += 1
        if found not in {None, "missed"}:
            wrong.append(f"case {number}: {found}")
        number += step
    faulthandler.cancel_dump_traceback_later()
    gc.collect()
    lost = treefold.host_memory_info()["used_bytes"] - used_bytes
    print(json.dumps({"hits": hits, "wrong": wrong[:5], "lost_bytes": lost}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
