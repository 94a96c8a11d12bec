"""Python programs in processes that have the frameworks imported: they are forked from one that imported them once.

A fork takes a hundredth of a second, where TensorFlow takes seven. Tests of starting, importing or ending a process use
a fresh one. On systems that do not fork (macOS, Windows), all programs are fresh ones.
"""

import atexit
import contextlib
import gc
import os
import pickle
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

_STATUS = struct.Struct("<i")
_MOST_BYTES, _MOST_DESCRIPTORS = 1 << 20, 16
#: Triton first, as in the conftest of all tests; not treefold, which reads variables when it is imported.
_FRAMEWORKS = ("triton._C.libtriton", "torch", "torch.distributed.nn", "tensorflow", "sklearn.datasets")
#: What the frameworks read when they are imported.
_QUIET = {
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TORCH_CPP_LOG_LEVEL": "FATAL",
}
PATIENCE_S = 300


class Program:
    """A program that runs."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers

    def wait(self, seconds: float = PATIENCE_S) -> int:
        """Return its exit code, or the signal that has ended it as a negative number; past the time it is killed."""
        with self._answers as answers:
            (pid,) = _STATUS.unpack(answers.recv(_STATUS.size, socket.MSG_WAITALL))
            answers.settimeout(seconds)
            try:
                return os.waitstatus_to_exitcode(*_STATUS.unpack(answers.recv(_STATUS.size, socket.MSG_WAITALL)))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise


class Programs:
    """The process that programs are forked from; it starts with the first of them."""

    def __init__(self) -> None:
        self._server = None

    def start(self, command, *, cwd=None, env=None, streams=(0, 1, 2)) -> Program:
        """Start ``python *command``; what has a descriptor among its words is inherited, and becomes its number."""
        if self._server is None:
            self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._server = subprocess.Popen(  # noqa: S603 - this file
                    [sys.executable, __file__, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env=os.environ | _QUIET,
                )
        handed = [word.fileno() for word in command if hasattr(word, "fileno")]
        words = [None if hasattr(word, "fileno") else os.fspath(word) for word in command]
        ours, theirs = socket.socketpair()
        with theirs:
            request = pickle.dumps((words, os.fspath(cwd or "."), dict(os.environ if env is None else env)))
            socket.send_fds(self._connection, [request], [theirs.fileno(), *streams, *handed])
        return Program(ours)

    def run(self, command, *, cwd=None, env=None, is_fresh=sys.platform != "linux") -> subprocess.CompletedProcess:
        """Run ``python *command`` to its end, and return what it has printed."""
        if is_fresh:
            return subprocess.run(  # noqa: S603 - our own programs
                [sys.executable, *command], cwd=cwd, env=env, capture_output=True, encoding="utf-8", check=False
            )
        with Path(os.devnull).open() as nothing, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            code = self.start(command, cwd=cwd, env=env, streams=[nothing.fileno(), out.fileno(), err.fileno()]).wait()
            printed = [stream.seek(0) or stream.read().decode() for stream in (out, err)]
        return subprocess.CompletedProcess(command, code, *printed)

    def close(self) -> None:
        if self._server is not None:
            self._connection.close()
            self._server.wait(20)


def _serve(connection: socket.socket) -> list[str | None] | None:
    """Start a process for each request; return in each of these what it is to run, and None when there is no more."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, _MOST_DESCRIPTORS)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not message:
            return None
        if os.fork() == 0:
            connection.close()
            return _start(descriptors, *pickle.loads(message))  # noqa: S301 - of the tests' own process
        for descriptor in descriptors:
            os.close(descriptor)


def _start(descriptors: list[int], words: list[str | None], cwd: str, env: dict[str, str]) -> list[str]:
    """Fork the program; return in it what it is to run. This process tells how it ends."""
    answers, *streams = descriptors[:4]
    handed = iter(descriptors[4:])
    pid = os.fork()
    if pid:
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        os.write(answers, _STATUS.pack(pid))
        os.write(answers, _STATUS.pack(os.waitpid(pid, 0)[1]))
        os._exit(0)
    os.close(answers)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for the whole program
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    return [str(next(handed)) if word is None else word for word in words]


def _main() -> None:
    for name in _FRAMEWORKS:
        with contextlib.suppress(ImportError):
            __import__(name)
    gc.freeze()
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    command = _serve(connection)
    os._exit(0 if command is None else _run(command))  # Triton has much to say at the end of an interpreter


def _run(command: list[str]) -> int:
    """Run a program as Python would; return its exit code."""
    code = 0
    try:
        _as_main(command)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if code and code is not ended.code:
            sys.stderr.write(f"{ended.code}\n")
    except BaseException:  # noqa: BLE001 - as Python ends a program
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    return code


def _as_main(command: list[str]) -> None:
    if command[0] == "-m":
        sys.argv = command[1:]
        sys.path[0] = str(Path.cwd())
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        sys.path[0] = str(Path(command[0]).parent.absolute())
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    _main()
