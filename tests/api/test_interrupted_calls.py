import subprocess
import sys

import pytest

# Wherever Python code of treefold runs, a signal handler or a finalizer may: here one reduces at every such moment.
PROGRAM = """
import itertools
import sys
import numpy as np
import treefold
from treefold import *

OPS = {ops}
LATE = [HierarchicalCopyAllReduce(2), ReductionToOneDevice()]
count = 0

def reduce_meanwhile(frame, event, argument):
    global count
    if event == "call" and "treefold" in frame.f_code.co_filename:
        sys.setprofile(None)
        count += 1
        for length, ops in itertools.product((3, 1 + count % 100), (OPS, LATE[count % 2])):
            value = PerReplica([np.full(length, 2.0**r, np.float32) for r in range(3)])
            assert ops.reduce("sum", value, value, out=value)[2][0] == 7
        sys.setprofile(reduce_meanwhile)

for length in (3, 3, 4, 5, 4, 5):
    value = PerReplica([np.full(length, 2.0**r, np.float32) for r in range(3)])
    sys.setprofile(reduce_meanwhile)
    result = OPS.reduce("sum", value, value)
    sys.setprofile(None)
    assert [array.tolist() for array in result] == [[7.0] * length] * 3
print(count)
"""


class TestReduce:
    @pytest.mark.parametrize("ops", ["ReductionToOneDevice()", 'HierarchicalCopyAllReduce("auto")'])
    def test_may_be_called_by_what_interrupts_it(self, ops):
        made = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-c", PROGRAM.format(ops=ops)], capture_output=True, text=True, timeout=120, check=False
        )
        assert made.returncode == 0, made.stderr
        assert int(made.stdout) > 100
