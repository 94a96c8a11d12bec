"""The processes of one library, as the benchmark sees them: it asks all of them, and waits for every answer.

Between orders they block on a socket and take no processor time, whatever their libraries do while they work. The time
of a call that several processes share is the longest of theirs; a barrier starts it on all at once.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from memory_bench.libraries import Library, find_missing, find_mpiexec
from memory_bench.worker import KEY
from treefold.bench.work import Work
from treefold.errors import PeerError

_START_S = 120.0
_ANSWER_S = 120.0


class Team:
    """One library for one number of devices and threads. Its processes start with the first order."""

    def __init__(self, info: Library, *, devices: int, threads: int) -> None:
        """Store what is to be started."""
        self.name = info.name
        self._info, self._devices, self._threads = info, devices, threads
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._files = contextlib.ExitStack()
        self._failure: PeerError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def prepare(self, work: Work) -> list[str]:
        """Give the team its work; return the names of the forms in which it can do it."""
        forms: list[str] = self._ask("prepare", work)[0]
        return forms

    def count_wrong(self, form: str) -> int:
        """Return how many elements of all results differ from the oracle's."""
        return sum(self._ask("count_wrong", form))

    def time(self, form: str, calls: int) -> list[float]:
        """Make calls, and return the seconds of each on the slowest process."""
        return [max(each) for each in zip(*self._ask("time", form, calls), strict=True)]

    def drop(self) -> None:
        """Let the team forget its work and its arrays."""
        self._ask("drop")

    def close(self) -> None:
        """End the processes."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.send(("stop",))
        for process in self._processes:
            _end(process)
        for connection in self._connections:
            connection.close()
        self._connections, self._processes = [], []
        self._files.close()

    def _ask(self, *order: Any) -> list[Any]:
        if self._failure is not None:
            raise self._failure
        if not self._connections:
            self._start()
        answers = []
        try:
            for connection in self._connections:
                connection.send(order)
            deadline = time.monotonic() + _ANSWER_S
            for connection in self._connections:
                if not connection.poll(max(0.0, deadline - time.monotonic())):
                    self._give_up(PeerError(f"no answer within {_ANSWER_S:.0f} s"))
                answers.append(connection.recv())
        except (EOFError, OSError):
            self._give_up(PeerError("its process ended"))
        failures = [answer for verdict, answer in answers if verdict == "failed"]
        if failures:
            raise PeerError(failures[0])
        return [answer for _, answer in answers]

    def _give_up(self, reason: PeerError) -> None:
        self._failure = reason
        for process in self._processes:
            process.terminate()
        self.close()
        raise reason

    def _start(self) -> None:
        missing = find_missing(self._info)
        if missing is not None:
            self._failure = PeerError("not installed")
            raise self._failure
        ranks = self._devices if self._info.is_process_per_replica else 1
        key = secrets.token_bytes(16)
        log = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        with Listener(("127.0.0.1", 0), backlog=ranks, authkey=key) as listener:
            host, port = listener.address
            scratch = Path(self._files.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            environment = self._environment(key, scratch / "meeting")
            for command in self._commands(f"{host}:{port}", ranks):
                self._processes.append(
                    subprocess.Popen(  # noqa: S603 - our own interpreter
                        command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                    )
                )
            self._accept(listener, ranks)

    def _commands(self, address: str, ranks: int) -> list[list[str]]:
        command = [sys.executable, "-m", "memory_bench.worker", self.name, address]
        if self.name == "mpi":
            return [[str(find_mpiexec()), "-n", str(ranks), *command, "-", str(ranks)]]
        return [[*command, str(rank), str(ranks)] for rank in range(ranks)]

    def _environment(self, key: bytes, meeting: Path) -> dict[str, str]:
        """Return the settings that libraries read when they are loaded."""
        threads = 1 if self._info.is_process_per_replica else self._threads
        # A worker finds this package, which is not installed, by the path.
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
        return os.environ | {
            "PYTHONPATH": path,
            KEY: key.hex(),
            "TREEFOLD_BENCH_DEVICES": str(self._devices),
            "TREEFOLD_BENCH_MEETING": str(meeting),
            "OMP_NUM_THREADS": str(threads),
            "TREEFOLD_BENCH_THREADS": str(threads),
        }

    def _accept(self, listener: Listener, ranks: int) -> None:
        inner: socket.socket = listener._listener._socket  # type: ignore[attr-defined]
        inner.settimeout(1.0)  # the public class has no timeout; a process that died before it connects is seen then
        deadline = time.monotonic() + _START_S
        while len(self._connections) < ranks:
            try:
                self._connections.append(listener.accept())
            except TimeoutError:
                if time.monotonic() > deadline or any(p.poll() is not None for p in self._processes):
                    self._give_up(PeerError("its processes did not start"))
        rank_of: dict[Connection, Any] = {connection: connection.recv()[1] for connection in self._connections}
        self._connections.sort(key=rank_of.__getitem__)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process, and end it if it does not end. A terminated launcher ends the processes that it started."""
    for insist in (process.terminate, process.kill):
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            insist()
    process.wait()
