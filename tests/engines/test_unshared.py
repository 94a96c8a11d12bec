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


_IN_THE_MIDDLE = """
import os, socket, threading
from treefold.engines.unshared import unshared_sockets

connected, forked = threading.Event(), threading.Event()

def connect():
    global one
    with unshared_sockets():
        one = socket.socket()
        one.bind(("127.0.0.1", 0))
        one.listen()
        one.set_inheritable(True)
        connected.set()
        forked.wait()

thread = threading.Thread(target=connect)
thread.start()
connected.wait()
inode = os.fstat(one.fileno()).st_ino
if (child := os.fork()) == 0:
    os._exit(os.fstat(one.fileno()).st_ino == inode)
forked.set()
thread.join()
is_kept = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("kept by the child, by the parent:", is_kept, os.fstat(one.fileno()).st_ino == inode)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Sockets are found in Linux's tables.")
def test_a_child_keeps_none_of_two_that_overlap():
    """Whichever ends last leaves those of the other as they are."""
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    assert (done.stdout, done.stderr) == ("kept by the child: 0\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="Sockets are found in Linux's tables.")
def test_a_child_keeps_none_that_is_forked_while_another_thread_connects():
    """The other thread goes on connecting."""
    # Python 3.12 and newer warn of every fork beside threads, which is what is tried here.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", _IN_THE_MIDDLE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    assert (done.stdout, done.stderr) == ("kept by the child, by the parent: 0 True\n", "")
