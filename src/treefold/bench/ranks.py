"""All-reduce between processes of one host, beside gloo and MPI in the same processes: what every rank runs.

Time is measured for the slowest rank; CPU time is summed over ranks, because ranks that share cores take it from each
other. All contestants take turns, and every element of every result is checked on every rank.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import treefold
from treefold.files import write_atomically
from treefold.group import Group, connect

#: Where the parent leaves the task of this program, as JSON.
TASK_VARIABLE = "TREEFOLD_BENCH_RANKS"
#: Peers by the option's words, and the packages that they need.
PEERS = {"gloo": "torch", "mpi": "mpi4py"}
IN_PLACE, NEW, SHARED, ONE_PROCESS = "in place", "into a shared result", "from group.empty", "one process, in place"
_ROUND_S = 0.02
_MOST_CALLS = 200

Runner = Callable[[], Any]


class Figure(NamedTuple):
    """What one contestant took for one size, in milliseconds per call: medians over rounds."""

    nbytes: int
    name: str
    cpu_ms: float
    wall_ms: float


def main() -> None:
    """Measure what the environment asks for; rank 0 writes the figures."""
    task = json.loads(os.environ[TASK_VARIABLE])
    with _connected(task["against"]) as group:
        peers = dict(_peers(task, group))
        figures = [figure for nbytes in task["sizes"] for figure in _measure(group, peers, nbytes, task["rounds"])]
        if group.rank == 0:
            write_atomically(Path(task["output"]), json.dumps(figures))


def _connected(against: Sequence[str]) -> Group:
    if "mpi" not in against:
        return connect()
    from mpi4py import MPI  # noqa: PLC0415 - an extra

    return connect(MPI.COMM_WORLD)


def _peers(task: dict[str, Any], group: Group) -> Iterator[tuple[str, Callable[[np.ndarray[Any, Any]], Runner]]]:
    """Yield peers, each with what makes it ready to reduce an array in place."""
    if "gloo" in task["against"]:
        import torch  # noqa: PLC0415 - an extra
        from torch import distributed  # noqa: PLC0415 - an extra

        torch.set_num_threads(1)
        store = f"file://{task['output']}.gloo"
        distributed.init_process_group("gloo", init_method=store, rank=group.rank, world_size=group.size)

        def by_gloo(array: np.ndarray[Any, Any]) -> Runner:
            tensor = torch.from_numpy(array)
            return lambda: distributed.all_reduce(tensor)

        yield "gloo", by_gloo
    if "mpi" in task["against"]:
        from mpi4py import MPI  # noqa: PLC0415 - an extra

        yield "mpi", lambda array: lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)


def _measure(
    group: Group, peers: dict[str, Callable[[np.ndarray[Any, Any]], Runner]], nbytes: int, rounds: int
) -> list[Figure]:
    """Return the figures of one size, peers first."""
    length = nbytes // 4
    runs = {name: make(np.zeros(length, np.float32)) for name, make in peers.items()}
    for name, make in peers.items():
        _check(group, name, make, length)
    runs |= _ours(group, length)
    calls = _calls(group, runs)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            group.barrier()
            figures = _turn(run, calls[name])
            everyone = group.all_gather(np.array([figures]))
            if turn:  # the first is a rehearsal
                taken[name].append((everyone[:, 0].sum(), everyone[:, 1].max()))
    return [
        Figure(nbytes, name, *(1e3 * statistics.median(column) for column in zip(*pairs, strict=True)))
        for name, pairs in taken.items()
    ]


def _ours(group: Group, length: int) -> dict[str, Runner]:
    """Return treefold's runs, each checked once."""
    own = np.zeros(length, np.float32)
    shared = group.empty(length, np.float32)
    kept: list[Any] = [None]
    # Zeros stay zeros however often they are summed; what is right is checked with other values.
    many = [np.zeros(length, np.float32) for _ in range(group.size)] if group.rank == 0 else []

    def into_shared(value: np.ndarray[Any, Any]) -> None:
        kept[0] = group.all_reduce(value)

    _check(group, IN_PLACE, lambda array: lambda: group.all_reduce(array, out=array), length)
    _check(group, NEW, lambda array: lambda: array.__setitem__(..., group.all_reduce(array)), length)
    shared[:] = 2.0**group.rank
    _expect(group, SHARED, group.all_reduce(shared))
    shared[:] = 0
    return {
        IN_PLACE: lambda: group.all_reduce(own, out=own),
        NEW: lambda: into_shared(own),
        SHARED: lambda: into_shared(shared),
        ONE_PROCESS: lambda: treefold.all_reduce(many, out=many) if many else None,
    }


def _check(group: Group, name: str, make: Callable[[np.ndarray[Any, Any]], Runner], length: int) -> None:
    """Let a contestant sum values that name their owner, and look at every element."""
    array = np.full(length, 2.0**group.rank, np.float32)
    make(array)()
    _expect(group, name, array)


def _expect(group: Group, name: str, result: np.ndarray[Any, Any]) -> None:
    wrong = int(np.count_nonzero(result != 2.0**group.size - 1))
    if wrong:
        sys.exit(f"{name}: {wrong} of {result.size} elements are wrong on rank {group.rank}")


def _calls(group: Group, runs: dict[str, Runner]) -> dict[str, int]:
    """Return how many calls make a round of each contestant; the same on all ranks."""
    calls = {}
    for name, run in runs.items():
        group.barrier()
        _, wall = _turn(run, 2)
        longest = float(group.all_gather(np.array([wall])).max())
        calls[name] = max(1, min(_MOST_CALLS, int(_ROUND_S / max(longest, 1e-9))))
    return calls


def _turn(run: Runner, calls: int) -> tuple[float, float]:
    """Return CPU and wall seconds per call."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        run()
    return (time.process_time() - cpu) / calls, (time.perf_counter() - wall) / calls


if __name__ == "__main__":
    main()
