import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, signal, threading, time
import numpy as np, treefold
from treefold.execution import host_fold
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp
from treefold.testing import owned, owned_sum

{before}
class Alarm(Exception):
    pass

def ring(number, frame):
    raise Alarm

signal.signal(signal.SIGALRM, ring)
shape = (2_000_003,)
arrays = [owned(r, shape) for r in range(8)]
target = np.zeros(shape, np.float32)
jobs = [host_fold.Job("float32", arrays, [target])] * 4_000  # seconds of work in one call
sent = []

def send():
    time.sleep(0.3)
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.{signal})

threading.Thread(target=send).start()
try:
    host_fold.fold_batch(jobs, Fold(ReduceOp.SUM))
    caught, taken = None, 0
except (KeyboardInterrupt, Alarm) as error:
    caught, taken = [type(error).__name__, *error.__notes__], time.perf_counter() - sent[0]
right = all(np.array_equal(result, owned_sum(8, shape)) for result in treefold.all_reduce(arrays))
same = all(np.array_equal(array, owned(r, shape)) for r, array in enumerate(arrays))
print(json.dumps(dict(caught=caught, taken=taken, right=right, same=same)))
"""
NOTE = "treefold: the reduction ended before it was done, so what `out` holds now is undefined. Reduce again."


def interrupted(signal, before=""):
    """Return what a process reports that was sent a signal in the middle of seconds of work."""
    program = PROGRAM.format(signal=signal, before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)  # noqa: S603
    return json.loads(done.stdout)


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill ends a process there")
class TestInterrupt:
    def test_ends_a_long_reduction(self, capsys):
        report = interrupted("SIGINT")
        with capsys.disabled():
            print(f"\nCtrl-C was answered after {1000 * report['taken']:.0f} ms; 200 ms are meant")  # noqa: T201
        assert report["taken"] < 2  # generous: the machine may be busy with other tests
        assert report["caught"] == ["KeyboardInterrupt", NOTE]
        assert report["right"]
        assert report["same"]

    def test_may_be_any_exception_of_any_handler(self):
        report = interrupted("SIGALRM")
        assert report["caught"] == ["Alarm", NOTE]
        assert report["right"]

    def test_ends_the_numpy_kernel_too(self):
        report = interrupted(
            "SIGINT", before="host_fold.native.HAS_NATIVE = False; host_fold._warn_without_native = lambda: 0"
        )
        assert report["caught"] == ["KeyboardInterrupt", NOTE]
        assert report["right"]
