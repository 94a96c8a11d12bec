"""Sockets that no child keeps, where two threads connect at once."""

import subprocess
import sys

import pytest

_SCRIPT = """
import contextlib, os, socket
from treefold.engines.unshared import unshared_sockets

def opened():
    # As C++ opens them: children inherit them.
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    one.listen()
    one.set_inheritable(True)
    return one

first, second = contextlib.ExitStack(), contextlib.ExitStack()
first.enter_context(unshared_sockets())
sockets = [opened()]
second.enter_context(unshared_sockets())
sockets.append(opened())
first.close()
sockets.append(opened())
second.close()
inodes = [os.fstat(one.fileno()).st_ino for one in sockets]
if (child := os.fork()) == 0:
    os._exit(sum(os.fstat(one.fileno()).st_ino == inode for one, inode in zip(sockets, inodes)))
print("kept by the child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Sockets are found in Linux's tables.")
def test_a_child_keeps_none_of_two_that_overlap():
    """Whichever ends last leaves those of the other as they are."""
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    assert (done.stdout, done.stderr) == ("kept by the child: 0\n", "")
