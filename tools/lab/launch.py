"""Commands on all hosts of a lab, as users launch them: by variables, by torchrun, by MPICH's mpiexec."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .hosts import LabError, end, signal_to, stop
from .lab import Lab

#: Where rank 0 of a job, or the launcher on its behalf, keeps the store of PyTorch's ranks.
PORT = 29500


def blocks(hosts: int, ranks_per_host: int) -> tuple[int, ...]:
    """Return the host of each rank, with neighbours together: 0, 0, 1, 1 …."""
    return tuple(host for host in range(hosts) for _ in range(ranks_per_host))


def round_robin(hosts: int, ranks_per_host: int) -> tuple[int, ...]:
    """Return the host of each rank, with neighbours apart: 0, 1 …, 0, 1 …."""
    return tuple(range(hosts)) * ranks_per_host


class Job:
    """Processes that belong together; a context manager that leaves none running.

    The function that starts them decides what they are: the ranks in order, a launcher per host, or one launcher.
    """

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self.processes = tuple(processes)

    def __enter__(self) -> Self:
        """Return the job."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the processes that still run."""
        for process in self.processes:
            end(process)

    def kill(self, number: int) -> None:
        """End a process by SIGKILL."""
        signal_to(self.processes[number], signal.SIGKILL)

    def stop(self, number: int) -> None:
        """Stop a process by SIGSTOP: its connections stay, and nothing answers."""
        stop(self.processes[number])

    def resume(self, number: int) -> None:
        """Resume a stopped process."""
        signal_to(self.processes[number], signal.SIGCONT)

    def wait(self, seconds: float | None = None) -> list[int]:
        """Wait for all processes to end, and return their exit codes; a signal's number is negative.

        Raises:
            subprocess.TimeoutExpired: not all of them have.

        """
        deadline = None if seconds is None else time.monotonic() + seconds
        left = (None if deadline is None else max(0.0, deadline - time.monotonic()) for _ in self.processes)
        return [process.wait(rest) for process, rest in zip(self.processes, left, strict=True)]


def start(
    lab: Lab,
    command: Sequence[str],
    placement: Sequence[int],
    *,
    environment: Mapping[str, str] | None = None,
    store_outside: bool = False,
    **options: Any,
) -> Job:
    """Start one process per rank, rank r on host ``placement[r]``, with the variables that torchrun sets.

    With ``store_outside``, the store is that of ``outside_store``; otherwise rank 0 makes it. ``options`` are those of
    Popen.
    """
    told = [rank_variables(lab, placement, rank, store_outside=store_outside) for rank in range(len(placement))]
    return Job(
        [
            lab.hosts[host].popen(command, {**variables, **(environment or {})}, **options)
            for host, variables in zip(placement, told, strict=True)
        ]
    )


def rank_variables(lab: Lab, placement: Sequence[int], rank: int, *, store_outside: bool) -> dict[str, str]:
    """Return the environment variables of a rank under torchrun."""
    host = placement[rank]
    beside = [other for other, place in enumerate(placement) if place == host]
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": len(placement),
        "LOCAL_RANK": beside.index(rank),
        "LOCAL_WORLD_SIZE": len(beside),
        "GROUP_RANK": host,
        "GROUP_WORLD_SIZE": len(set(placement)),
        "MASTER_PORT": PORT,
    }
    return {
        **{name: str(number) for name, number in numbers.items()},
        "MASTER_ADDR": lab.switch_address if store_outside else lab.address(placement[0]),
        "TORCHELASTIC_USE_AGENT_STORE": str(store_outside),
        **engine_variables(lab),
    }


def engine_variables(lab: Lab) -> dict[str, str]:
    """Return the variables that let gloo and UCX use all NICs of a host."""
    nics = ",".join(f"eth{nic}" for nic in range(lab.network.nics))
    return {
        "GLOO_SOCKET_IFNAME": nics,
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": nics,
        "OMP_NUM_THREADS": "1",
    }


@contextlib.contextmanager
def outside_store(lab: Lab, python: str = sys.executable) -> Iterator[None]:
    """Keep a PyTorch store on the switches' side, where it outlives every rank, like that of torchrun's agent."""
    script = Path(__file__).with_name("store.py")
    command = [python, str(script), lab.switch_address, str(PORT)]
    with Job([lab.switches.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)]) as job:
        answer = job.processes[0].stdout
        if answer is None or answer.readline() != b"listening\n":
            message = "The store did not start; what Python says about it stands above."
            raise LabError(message)
        yield


def torchrun(
    lab: Lab,
    command: Sequence[str],
    ranks_per_host: int = 1,
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> Job:
    """Start PyTorch's own launcher on every host, one process per host; ``command`` is a script and its arguments."""

    def line(host: int) -> list[str]:
        return [
            *(python, "-m", "torch.distributed.run"),
            f"--nnodes={lab.network.hosts}",
            f"--nproc-per-node={ranks_per_host}",
            f"--node-rank={host}",
            f"--master-addr={lab.address(0)}",
            f"--master-port={PORT}",
            f"--local-addr={lab.address(host)}",
            *command,
        ]

    told = {**engine_variables(lab), **(environment or {})}
    return Job([host.popen(line(number), told, **options) for number, host in enumerate(lab.hosts)])


def mpiexec(
    lab: Lab,
    command: Sequence[str],
    placement: Sequence[int],
    *,
    launcher: str | None = None,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> Job:
    """Start MPICH's own launcher, which starts ``command`` once per rank. The job is one process: the launcher.

    Raises:
        LabError: there is no ``mpiexec``, or the placement is neither in blocks nor round robin over all hosts.

    """
    per_host = len(placement) // lab.network.hosts
    in_turns = tuple(placement) == round_robin(lab.network.hosts, per_host)
    if not in_turns and tuple(placement) != blocks(lab.network.hosts, per_host):
        message = f"mpiexec places ranks in blocks or round robin on all hosts, not on {list(placement)}."
        raise LabError(message)
    script = lab.switches.memory / "into_host"
    script.write_text(_into_host(lab))
    script.chmod(0o700)
    line = [launcher or find_mpiexec(), "-n", str(len(placement)), "-ppn", "1" if in_turns else str(per_host)]
    line += ["-hosts", ",".join(lab.address(host) for host in range(lab.network.hosts))]
    line += ["-localhost", lab.switch_address, "-launcher", "ssh", "-launcher-exec", str(script), *command]
    told = {**os.environ, "TMPDIR": "/dev/shm", **engine_variables(lab), **(environment or {})}  # noqa: S108
    # In the switches' network, where all hosts reach it, and outside the other namespaces, or it could enter none.
    enter = lab.switches.enter(network_only=True)
    return Job([subprocess.Popen([*enter, *line], env=told, start_new_session=True, **options)])


def find_mpiexec() -> str:
    """Return MPICH's launcher: the one that is installed beside this Python, else the first on the PATH.

    Raises:
        LabError: there is none.

    """
    found = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if found is None:
        message = "There is no mpiexec; pip install mpich mpi4py (the extra `bench`)."
        raise LabError(message)
    return found


def _into_host(lab: Lab) -> str:
    """Return the program that mpiexec calls in place of ssh, with options, a host's address, and a shell command."""
    lines = ["#!/bin/sh", 'while [ "${1#-}" != "$1" ]; do shift; done', "address=$1; shift", "case $address in"]
    for number, host in enumerate(lab.hosts):
        lines.append(f'{lab.address(number)}) exec {shlex.join(host.enter())} sh -c "$*" ;;')
    return "\n".join([*lines, "esac", 'echo "no host $address" >&2; exit 1', ""])
