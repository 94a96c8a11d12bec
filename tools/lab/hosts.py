"""One host of a lab: namespaces of its own, and one process that holds them open."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: The program of a host's first process. It gives the host a name, shared memory of its own, its NICs in /sys, names
#: for the other hosts, and a boot id of its own, by which programs distinguish machines. Then it waits for the end of
#: its input. It is process 1 of its namespace: when it ends, the kernel ends all others.
_BOOT = """
hostname "$0" && mount -t tmpfs tmpfs /dev/shm && mount -t sysfs sysfs /sys && ip link set lo up || exit
mkdir /dev/shm/.lab && printf "%s" "$1" > /dev/shm/.lab/hosts && mount --bind /dev/shm/.lab/hosts /etc/hosts || exit
cat /proc/sys/kernel/random/uuid > /dev/shm/.lab/boot || exit
mount --bind /dev/shm/.lab/boot /proc/sys/kernel/random/boot_id && echo up && exec cat > /dev/null
"""
_APART = ("--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child")


class LabError(Exception):
    """A lab that cannot be built, or a missing part of a lab."""


class Host:
    """An emulated host with NICs, a name, processes and ``/dev/shm`` of its own; the file system is shared.

    The host's memory also holds ``$TMPDIR``, because real machines do not share ``/tmp`` either.
    """

    def __init__(self, name: str, addresses: Mapping[str, str]) -> None:
        """Boot a host with the addresses of these hosts by name."""
        self.name = name
        self._processes: list[subprocess.Popen[bytes]] = []
        known = "".join(f"{address} {other}\n" for other, address in {"localhost": "127.0.0.1", **addresses}.items())
        # A session of its own: Ctrl-C goes to the process that made the lab, which then ends the host.
        self._first = subprocess.Popen(
            ["unshare", *_APART, "sh", "-c", _BOOT, name, known],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        if self._first.stdout is None or self._first.stdout.readline() != b"up\n":
            _, told = self._first.communicate()
            message = f"A host needs its own namespaces: {told.decode().strip()}."
            raise LabError(message)

    @property
    def process_id(self) -> int:
        """A process in the host's network namespace."""
        return self._first.pid

    @property
    def memory(self) -> Path:
        """The host's ``/dev/shm``, seen from outside; its files are removed with the host."""
        return Path(f"/proc/{self._first.pid}/root/dev/shm")

    def popen(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a command on the host, as the leader of a process group, to which ``signal_to`` sends signals.

        ``environment`` is added to this process's, and ``options`` are those of Popen. The command ends with the host
        at the latest.
        """
        inherited = {**os.environ, "TMPDIR": "/dev/shm", **(environment or {})}  # noqa: S108 - the host's own
        process = subprocess.Popen(
            [*self.enter(), *command], env=inherited, start_new_session=True, **options
        )  # fmt: skip
        self._processes.append(process)
        return process

    def run(self, *command: str, seconds: float = 60.0) -> str:
        """Run a command on the host to its end, and return what it prints.

        Raises:
            LabError: it fails; the sentence holds what it has printed as an error.
            subprocess.TimeoutExpired: it does not end.

        """
        process = self.popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            printed, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            signal_to(process, signal.SIGKILL)
            process.communicate()
            raise
        return self._printed(command, process.returncode, printed, errors)

    def configure(self, *command: str, lines: str = "") -> str:
        """Run ``ip`` or ``tc`` in the host's network, with these lines as its input, and return what it prints.

        Raises:
            LabError: it fails; the sentence holds what it has printed as an error.

        """
        # The network only: `ip` names networks by processes, and those of other hosts have no number inside this one.
        line = [*self.enter(network_only=True), *command]
        done = subprocess.run(line, input=lines.encode(), capture_output=True, check=False)
        return self._printed(command, done.returncode, done.stdout, done.stderr)

    def close(self) -> None:
        """End everything that runs on the host. Without processes its namespaces are removed as well."""
        for process in self._processes:  # first, for the kernel waits until their `nsenter`, stopped ones too, let go
            end(process)
        if self._first.stdin is not None:
            self._first.stdin.close()
        self._first.wait()  # the kernel lets it end after all others of the host
        end(self._first)

    def _printed(self, command: Sequence[str], code: int, printed: bytes, errors: bytes) -> str:
        if code:
            message = f"{self.name}: `{' '.join(command)}` ended with {code}: {errors.decode().strip()}"
            raise LabError(message)
        return printed.decode()

    def enter(self, *, network_only: bool = False) -> list[str]:
        """Return the beginning of a command line that runs on the host, or only in its network."""
        pid = self._first.pid
        command = ["nsenter", f"--target={pid}", "--net"]
        if not network_only:
            # `unshare` itself stays out of the namespace of processes that it has made for its children.
            command += ["--mount", "--uts", "--ipc", f"--pid=/proc/{pid}/ns/pid_for_children", f"--wd={Path.cwd()}"]
        return [*command, "--"]


def signal_to(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a command on a host and to its children, not only to the ``nsenter`` that has started it."""
    if process.poll() is None:
        os.killpg(process.pid, number)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a command on a host, and return when its ``nsenter`` has noticed and stopped, too.

    A SIGCONT to both then resumes both. If signals stopped both, ``nsenter`` could notice later, and stop once more.
    """
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split():
        os.kill(int(child), signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a command and its children, if it still runs, and close the pipes that lead to it."""
    signal_to(process, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # what was written and never read
                pipe.close()


def missing_tools() -> list[str]:
    """Return the programs that a lab needs and this machine lacks."""
    return [tool for tool in ("unshare", "nsenter", "ip", "tc") if shutil.which(tool) is None]
