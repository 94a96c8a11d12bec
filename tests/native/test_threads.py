import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from floating_modes import MODES, thread_mode

import treefold
from treefold.execution import native
from treefold.testing import owned, owned_sum

SEVERAL_TASKS = (70_001,)


def is_right(shape, index):
    """Reduce replicas that are scaled by ``index``, so that no two threads expect the same, and check the result."""
    scale = np.float32(1 + index % 1000)
    results = treefold.all_reduce([owned(r, shape) * scale for r in range(4)])
    return all(np.array_equal(result, owned_sum(4, shape) * scale) for result in results)


class TestCallingThreads:
    @pytest.mark.parametrize("shape", [(257,), (40_011,)])
    def test_a_thousand_at_once_give_a_thousand_right_results(self, shape):
        start = threading.Barrier(1000)
        right = []

        def call(index):
            start.wait()
            right.append(is_right(shape, index))

        threads = [threading.Thread(target=call, args=(index,)) for index in range(1000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert right == [True] * 1000

    def test_may_change_the_number_of_threads_meanwhile(self):
        stopped = threading.Event()

        def change():
            count = 0
            while not stopped.is_set():
                native.set_num_threads(1 + count % 8)
                count += 1
            return count

        with ThreadPoolExecutor(9) as threads:
            changer = threads.submit(change)
            right = list(threads.map(lambda index: is_right(SEVERAL_TASKS, index), range(400)))
            stopped.set()
        assert right == [True] * 400
        assert changer.result() > 0

    def test_may_reduce_in_a_signal_handler_of_a_reduction(self):
        """The handler runs on the thread that is reducing; its own reduction is right, and so is the outer one."""
        assert report_of(REENTRANT) == "right\n"

    def test_may_be_daemons_when_the_process_ends(self):
        """A process may end while others reduce: it exits with 0, and without a word."""
        assert report_of(DAEMONS) == "end\n"


def report_of(program):
    """Return what a program prints; it must exit with 0 within a minute and leave stderr empty."""
    # Python 3.12 and newer warn of every fork beside threads, which is what is tried here.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", program]
    folders = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": folders}  # for the modules of these tests
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)  # noqa: S603
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


REENTRANT = """
import signal
import numpy as np, treefold
from treefold.testing import owned, owned_sum
treefold.set_num_threads(4)
inner = []
def handler(number, frame):
    results = treefold.all_reduce([owned(r, (500_003,)) for r in range(3)])
    inner.append(all(np.array_equal(result, owned_sum(3, (500_003,))) for result in results))
signal.signal(signal.SIGALRM, handler)
arrays = [owned(r, (1_000_003,)) for r in range(8)]
batch = [(treefold.PerReplica(arrays), "cpu:0")] * 60
ops = treefold.ReductionToOneDevice()
ops.batch_reduce("sum", batch)
signal.setitimer(signal.ITIMER_REAL, 0.02)
while not inner:
    outer = ops.batch_reduce("sum", batch)
print("right" if all(inner) and all(np.array_equal(m[0], owned_sum(8, (1_000_003,))) for m in outer) else "wrong")
"""

DAEMONS = """
import threading, time
import numpy as np, treefold
arrays = [np.zeros(200_000, np.float32) for _ in range(4)]
def forever():
    while True:
        treefold.all_reduce(arrays)
for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.3)
print("end")
"""

FORK = """
import os, sys, threading, time
import numpy as np, treefold
from treefold.execution import native
from treefold.testing import owned, owned_sum

treefold.set_num_threads(3)
arrays = [owned(r, (300_007,)) for r in range(4)]
expected = owned_sum(4, (300_007,))
stopped = threading.Event()
calls = 0

def is_right():
    return all(np.array_equal(result, expected) for result in treefold.all_reduce(arrays))

def reduce_on():
    global calls
    while not stopped.is_set():
        assert is_right()
        calls += 1

others = [threading.Thread(target=reduce_on) for _ in range(2)]
for other in others:
    other.start()
codes = []
for turn in range(40):
    child = os.fork()
    if child == 0:
        os._exit(0 if is_right() and is_right() and native.num_threads() == 3 else 1)
    for _ in range(2000):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        status = -1
    codes.append(status)
stopped.set()
for other in others:
    other.join()
print(codes == [0] * 40 and calls > 0 and is_right() or (codes, calls))
"""


#: Forks from a signal handler while workers are in the middle of tasks. Folded in place, so that no task can be done
#: twice; and of factors that underflow on the way, which takes long enough for a signal to come in between.
FORK_IN_HANDLER = """
import os, signal, time
import numpy as np, treefold
from treefold.testing import owned, owned_sum

LENGTH, FORKS = 2_000_003, 5
treefold.set_num_threads(4)
pattern = np.arange(LENGTH) % 7 + 1.0
parent, children = os.getpid(), []

def handler(number, frame):
    if frame.f_code.co_qualname in {"_fold_natively", "_HostRepeater.repeat"} and os.getpid() == parent:
        children.append(os.fork())

def status_of(child):
    for _ in range(500):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]

signal.signal(signal.SIGALRM, handler)
right = True
while right and len(children) < FORKS:
    factors = [np.full(LENGTH, 2.0**-600), np.full(LENGTH, 2.0**-600), pattern * 2.0**600, np.full(LENGTH, 2.0**600)]
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    treefold.all_reduce(factors, "product", out=factors)
    right = all(np.array_equal(factor, pattern) for factor in factors)
    if os.getpid() != parent:
        results = treefold.all_reduce([owned(r, (300_007,)) for r in range(3)])
        right = right and all(np.array_equal(result, owned_sum(3, (300_007,))) for result in results)
        os._exit(0 if right else 1)
print(right, [status_of(child) for child in children])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
class TestFork:
    def test_in_a_signal_handler_leaves_parent_and_child_with_the_right_result(self):
        """A child forked in the middle of a reduction in place finishes it alone, and so does the parent."""
        assert report_of(FORK_IN_HANDLER) == "True [0, 0, 0, 0, 0]\n"

    def test_leaves_parent_and_child_working(self):
        assert report_of(FORK) == "True\n"


#: The first call of a process, in a mode of its own.
FIRST_CALL = """
import numpy as np, treefold
from floating_modes import current_mode, thread_mode
with thread_mode({mode!r}):
    before = current_mode()
    treefold.all_reduce([np.ones(3, np.float32)] * 2)
    print(current_mode() == before)
"""

#: A handler that changes the mode within a long fold, by weights whose products have errors to be added up.
MODE_IN_HANDLER = """
import signal
import numpy as np, treefold
from floating_modes import current_mode, set_mode, thread_mode
treefold.set_num_threads(1)
rng = np.random.default_rng(0)
arrays, weights = [rng.normal(size=400_000) for _ in range(8)], [int(one) for one in rng.integers(2**52, 2**53, 8)]
expected, seen = treefold.all_reduce(arrays, "mean", weights=weights)[0].tobytes(), []
with thread_mode("up"):
    up = current_mode()
with thread_mode("down"):
    down = current_mode()

def handler(number, frame):
    seen.append(current_mode())
    set_mode("down")

signal.signal(signal.SIGALRM, handler)
with thread_mode("up"):
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    made = treefold.all_reduce(arrays, "mean", weights=weights)[0].tobytes()
    after = current_mode()
print(made == expected, seen == [up], after == down)
"""


class TestFloatingPointMode:
    @pytest.mark.parametrize("mode", MODES)
    def test_is_the_callers_also_after_the_first_call(self, mode):
        """The first call tries whether the processor's flag works, which takes a mode of its own."""
        with thread_mode(mode):  # where this can be set at all
            pass
        assert report_of(FIRST_CALL.format(mode=mode)) == "True\n"

    def test_is_kept_from_a_signal_handler_and_not_folded_in(self):
        """The handler sees the caller's mode; what it sets holds after the call, and changes no result."""
        with thread_mode("up"):
            pass
        assert report_of(MODE_IN_HANDLER) == "True True True\n"

    def test_changes_no_weight(self):
        rng = np.random.default_rng(0)
        arrays, weights = [rng.normal(size=1000) for _ in range(8)], rng.integers(2**52, 2**53, 8).tolist()
        expected = treefold.all_reduce(arrays, "mean", weights=weights)[0]
        for mode in MODES:
            with thread_mode(mode):
                made = treefold.all_reduce(arrays, "mean", weights=weights)[0]
            assert np.array_equal(made, expected)

    def test_denormals_survive_where_the_caller_flushes_them(self):
        """PyTorch on request, and TensorFlow's graphs, switch denormals off for their threads; folds do not."""
        torch = pytest.importorskip("torch")
        tiny = [np.full(200_000, (r + 1) * 1e-45, np.float32) for r in range(3)]
        expected = treefold.all_reduce([array.copy() for array in tiny])[0]
        assert expected[0] > 0
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor always keeps denormals")
        try:
            for op in ("sum", "max"):
                made = treefold.all_reduce(tiny, op)[0]
                is_flushed = np.float32(1e-45) * np.float32(1) == 0
                assert (made.view(np.uint32) == (expected if op == "sum" else tiny[2]).view(np.uint32)).all()
            assert is_flushed  # the caller's mode is as it was
        finally:
            torch.set_flush_denormal(False)
