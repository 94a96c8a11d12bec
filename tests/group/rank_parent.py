"""The process that ranks are forked from, and what a rank does around its body; ``rank_processes.py`` starts it."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib.util
import mmap
import os
import pickle
import resource
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Bodies of ranks use what tests of several folders share.
sys.path.append(str(Path(__file__).parent.parent))

_LENGTH = struct.Struct("<Q")
_TIME = struct.Struct("<q")
#: How long after the last rank that ended by itself a stopped one is let go on, and one that does not end is killed.
_GRACE_S = 5.0
_PAUSE_S = 0.03
_BROKE = "a fault of this test"


class Rank:
    """The argument of a rank's body."""

    def __init__(self, rank: int, size: int, ticket: str, shared: mmap.mmap) -> None:
        self.rank, self.size, self.ticket = rank, size, ticket
        #: What the body connects by itself is put here, so that it is closed before anything is counted.
        self.group: Any = None
        self._shared = shared
        self.settled_at = 0

    def note_fault(self) -> None:
        """Write down that the fault happens now, on this rank."""
        self._shared[:9] = _TIME.pack(time.monotonic_ns()) + bytes([self.rank + 1])

    def settle(self) -> None:
        """Write down that the call that the fault has hit is over for this rank."""
        self.settled_at = time.monotonic_ns()

    def flag(self, index: int, value: int | None = None) -> int:
        """Set a byte that all ranks see, or return it."""
        if value is not None:
            self._shared[64 + index] = value
        return self._shared[64 + index]

    def wait_flag(self, index: int, seconds: float = 20.0) -> None:
        """Wait until somebody has set a flag."""
        until = time.monotonic() + seconds
        while not self.flag(index):
            assert time.monotonic() < until, f"nobody has set flag {index}"
            time.sleep(0.001)

    def fail(self, kind: str) -> None:
        """End, or stop, in one of the manners that processes have."""
        self.note_fault()
        if kind == "raise":
            raise RuntimeError(_BROKE)
        if kind == "exit":
            os._exit(7)
        if kind == "segfault":
            ctypes.string_at(8)
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind])


def send(connection: socket.socket, message: Any) -> None:
    data = pickle.dumps(message)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> Any:
    """Return the next message from the other side."""

    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = connection.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    return pickle.loads(exactly(*_LENGTH.unpack(exactly(_LENGTH.size))))


@dataclass
class _Started:
    rank: int
    pid: int
    report: int
    data: bytearray = field(default_factory=bytearray)
    ended: dict[str, Any] | None = None

    def read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.report, 1 << 16):
                self.data += part


class _Running:
    """A world with running ranks."""

    def __init__(self, what: tuple[str, str, int, dict[str, Any]], how: tuple[float, float | None, tuple[str, ...]]):
        file, name, size, arguments = what
        seconds, timeout_seconds, self.may_leave = how
        body = getattr(_module(file), name)
        self.until = time.monotonic() + seconds
        self.grace_until: float | None = None
        self.look_again = 0.0
        self.shared = mmap.mmap(-1, mmap.PAGESIZE)
        self.stacks = tempfile.TemporaryFile(dir="/tmp")  # noqa: SIM115 - closed when the world ends
        from treefold.group import Ticket  # noqa: PLC0415 - in the parent of the ranks only

        tickets = Ticket.for_ranks(size)
        self.folder = Ticket.read(tickets[0]).folder
        self.ranks = []
        for rank in range(size):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                faulthandler.register(signal.SIGUSR1, file=self.stacks, all_threads=True)
                started = Rank(rank, size, tickets[rank], self.shared)
                _live(started, body, arguments, timeout_seconds, write, self.may_leave)
            os.close(write)
            os.set_blocking(read, False)
            self.ranks.append(_Started(rank, pid, read))

    def look(self) -> bool:
        """Collect ranks that have ended; tell whether all have."""
        for one in self.ranks:
            if one.ended is None:
                one.read()  # a pipe does not hold every report, and its rank waits for a reader
                found, status = os.waitpid(one.pid, os.WNOHANG)
                if found:
                    one.ended = self._report(one, status)
        waiting = [one for one in self.ranks if one.ended is None]
        if not waiting:
            return True
        now = time.monotonic()
        if self.grace_until is None and now > self.look_again and all(_state(one.pid) == "T" for one in waiting):
            for one in waiting:
                os.kill(one.pid, signal.SIGCONT)
            self.grace_until = now + _GRACE_S
        if now > self.look_again:
            self.look_again = now + _PAUSE_S
        if now > self.until or (self.grace_until is not None and now > self.grace_until):
            self._kill(waiting)
            return True
        return False

    def _kill(self, waiting: Sequence[_Started]) -> None:
        for one in waiting:
            with contextlib.suppress(OSError):
                os.kill(one.pid, signal.SIGUSR1)
                os.kill(one.pid, signal.SIGCONT)
        time.sleep(0.3)
        self.stacks.seek(0)
        stacks = self.stacks.read().decode()
        for one in waiting:
            os.kill(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)
            one.ended = {"rank": one.rank, "has_hung": True, "stack": stacks}

    def _report(self, one: _Started, status: int) -> dict[str, Any]:
        one.read()
        if one.data:
            return {"rank": one.rank, **pickle.loads(one.data)}
        if os.WIFSIGNALED(status):
            return {"rank": one.rank, "signal": os.WTERMSIG(status)}
        return {"rank": one.rank, "code": os.WEXITSTATUS(status)}

    def finish(self) -> list[dict[str, Any]]:
        """Return what became of the ranks."""
        for one in self.ranks:
            os.close(one.report)
        at = _TIME.unpack(self.shared[:8])[0]
        self.shared.close()
        self.stacks.close()
        ended = [one.ended or {} for one in self.ranks]
        for report in ended:
            settled = report.pop("settled_at", 0)
            report["seconds_after"] = (settled - at) / 1e9 if at and settled else None
        if os.path.exists(self.folder):  # noqa: PTH110 - a string as the ticket has it
            shutil.rmtree(self.folder)
            if "folder" not in self.may_leave:
                ended[0]["left"] = (*ended[0].get("left", ()), f"the folder {self.folder}")
        for report in ended:
            report["left"] = tuple(left for left in report.get("left", ()) if left.split()[1] not in self.may_leave)
        return ended


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    return ""


_modules: dict[str, Any] = {}


def _module(file: str) -> Any:
    if file not in _modules:
        spec = importlib.util.spec_from_file_location(Path(file).stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[Path(file).stem] = module
        spec.loader.exec_module(module)
        _modules[file] = module
    return _modules[file]


def _live(
    rank: Rank,
    body: Any,
    arguments: dict[str, Any],
    timeout_seconds: float | None,
    write: int,
    may_leave: tuple[str, ...],
) -> None:
    """Be a rank: never returns."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    report: dict[str, Any] = {}
    before = footprint()
    try:
        if timeout_seconds is not None:
            from treefold.group import connect  # noqa: PLC0415 - in ranks only

            rank.group = connect(rank.ticket, timeout_seconds=timeout_seconds, connect_timeout_seconds=30)
        report["value"] = body(rank, **arguments)
    except BaseException as error:  # noqa: BLE001 - every end of a rank is reported
        report["error"] = (type(error).__name__, str(error))
        report["stack"] = traceback.format_exc()
        del error
    report["settled_at"] = rank.settled_at
    try:
        data = pickle.dumps(report["value"]) if "value" in report else b""
        report.pop("value", None)
        if rank.group is not None:
            rank.group.close()
        rank.group = None
        gc.collect()
        until = time.monotonic() + _GRACE_S
        while _left(before, may_leave) and time.monotonic() < until:  # threads take a moment to end
            time.sleep(0.005)
            gc.collect()
        kept = {"threads", "Python threads", "descriptors"} if _has_sleepers() else set()
        left = [one for one in _left(before, may_leave) if one[0] not in kept]
        report["left"] = tuple(f"{now} {name} instead of {then}" for name, then, now in left)
        if data:
            report["value"] = pickle.loads(data)
        with open(write, "wb") as pipe:
            pipe.write(pickle.dumps(report))
    finally:
        os._exit(0)


def _left(before: dict[str, int], may_leave: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """Return what is in use now and was not before, but for the kinds that may be left."""
    return [one for one in changes(before) if one[0].split()[0] not in may_leave]


def _has_sleepers() -> bool:
    """Tell whether gloo has forgotten to wake some threads: they keep what is gloo's own of their channel."""
    callers = [frame.f_code.co_qualname for frame in sys._current_frames().values()]
    return any(caller.startswith(("GlooReceives.", "_Way.")) for caller in callers)


def footprint() -> dict[str, int]:
    """Return how much of this process's system resources is in use."""
    maps = Path("/proc/self/maps").read_text()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - as quick as it gets
        "mappings of a group": maps.count("memfd:treefold"),
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208 - as quick as it gets
        "Python threads": threading.active_count(),
    }


def changes(before: dict[str, int]) -> list[tuple[str, int, int]]:
    now = footprint()
    return [(name, then, now[name]) for name, then in before.items() if then != now[name]]


def _serve(connection: socket.socket) -> None:
    while True:
        try:
            request, at_once = receive(connection)
        except EOFError:
            return
        try:
            send(connection, _run(request, at_once))
        except BaseException:  # noqa: BLE001 - whoever asked is to see it
            send(connection, traceback.format_exc())


def _run(request: list[Any], at_once: int) -> list[list[dict[str, Any]]]:
    results: list[Any] = [None] * len(request)
    waiting = list(reversed(list(enumerate(request))))
    running: dict[int, _Running] = {}
    while waiting or running:
        while waiting and len(running) < at_once:
            index, (what, how) = waiting.pop()
            running[index] = _Running(what, how)
        for index, world in list(running.items()):
            if world.look():
                results[index] = world.finish()
                del running[index]
        time.sleep(0.004)
    return results


def _main() -> None:
    import treefold.group  # noqa: F401, PLC0415 - so that ranks need not

    gc.freeze()
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)  # programs that ranks start are looked at for what they inherit of a group
    _serve(connection)
    os._exit(0)  # as ranks do: an interpreter with frameworks in it takes a second to end


if __name__ == "__main__":
    _main()
