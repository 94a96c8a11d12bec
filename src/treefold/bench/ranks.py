"""All-reduce between processes of one host, beside gloo in the same processes: the program of every rank.

Time is measured for the slowest rank. CPU time is summed over ranks, because ranks that share cores take it from each
other. All contenders take turns, and every element of every result is checked on every rank.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import treefold
from treefold.errors.words import counted
from treefold.files import write_atomically
from treefold.group import Group, connect

#: Where the parent leaves the task of this program, as JSON.
TASK_VARIABLE = "TREEFOLD_BENCH_RANKS"
#: Baselines by the option's words, and the packages that they need.
BASELINES = {"gloo": "torch"}
IN_PLACE, NEW, SHARED, ONE_PROCESS = "in place", "into a shared result", "from group.empty", "one process, in place"
_ROUND_S = 0.02
_MOST_CALLS = 200

Runner = Callable[[], Any]
Arrays = list[np.ndarray[Any, Any]]


class Figure(NamedTuple):
    """The time of one contender for one work, in milliseconds per call: medians over rounds."""

    work: str
    name: str
    cpu_ms: float
    wall_ms: float


#: Returns a function that reduces these arrays in place, with a call for each, as users write it.
Start = Callable[[Arrays], Runner]


def measure_here(group: Group, more: Mapping[str, Start] | None = None) -> None:
    """Measure the works that the environment names, and ``more`` baselines, too; rank 0 writes the figures."""
    task = json.loads(os.environ[TASK_VARIABLE])
    with group:
        starts = {"gloo": _gloo(f"file://{task['output']}.gloo", group)} if "gloo" in task["against"] else {}
        starts |= more or {}
        figures = [
            figure
            for work, lengths in task["works"]
            for figure in _measure(group, starts, work, lengths, task["rounds"])
        ]
        if group.rank == 0:
            write_atomically(Path(task["output"]), json.dumps(figures))


def _gloo(store: str, group: Group) -> Start:
    import torch  # noqa: PLC0415 - an extra
    from torch import distributed  # noqa: PLC0415 - an extra

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=store, rank=group.rank, world_size=group.size)

    def start(arrays: Arrays) -> Runner:
        tensors = [torch.from_numpy(array) for array in arrays]
        return lambda: [distributed.all_reduce(tensor) for tensor in tensors]

    return start


def _measure(group: Group, starts: Mapping[str, Start], work: str, lengths: Sequence[int], rounds: int) -> list[Figure]:
    """Return the figures of one work, baselines first. Baselines get several arrays one by one, then as a flat one."""
    runs = {}
    for name, start in starts.items():
        flat = {f"{name}, flat": [sum(lengths)]} if len(lengths) > 1 else {}
        for form, own in {name: lengths, **flat}.items():
            _check(group, form, start, own)
            runs[form] = start(_full(own, 0))
    runs |= _ours(group, lengths)
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
        Figure(work, name, *(1e3 * statistics.median(column) for column in zip(*pairs, strict=True)))
        for name, pairs in taken.items()
    ]


def _full(lengths: Sequence[int], value: float) -> Arrays:
    return [np.full(length, value, np.float32) for length in lengths]


def _ours(group: Group, lengths: Sequence[int]) -> dict[str, Runner]:
    """Return treefold's runs after one check of each."""
    shared = [group.empty(length, np.float32) for length in lengths]
    kept: list[Any] = [None]
    # Zeros stay zeros however often they are summed. The results are checked with other values.
    own = _full(lengths, 0)
    many = [_full(lengths, 0) for _ in range(group.size)] if group.rank == 0 else []

    def keep(value: Arrays) -> None:
        kept[0] = group.all_reduce(value)

    def copy(arrays: Arrays) -> None:
        for array, result in zip(arrays, group.all_reduce(arrays), strict=True):
            array[...] = result

    _check(group, IN_PLACE, lambda arrays: lambda: group.all_reduce(arrays, out=arrays), lengths)
    _check(group, NEW, lambda arrays: lambda: copy(arrays), lengths)
    for array in shared:
        array[:] = 2.0**group.rank
    _expect(group, SHARED, group.all_reduce(shared))
    for array in shared:
        array[:] = 0
    return {
        IN_PLACE: lambda: group.all_reduce(own, out=own),
        NEW: lambda: keep(own),
        SHARED: lambda: keep(shared),
        ONE_PROCESS: lambda: treefold.all_reduce(many, out=many) if many else None,
    }


def _check(group: Group, name: str, start: Start, lengths: Sequence[int]) -> None:
    """Let a contender sum values that name their owner, and check every element."""
    arrays = _full(lengths, 2.0**group.rank)
    start(arrays)()
    _expect(group, name, arrays)


def _expect(group: Group, name: str, results: Arrays) -> None:
    wrong = sum(int(np.count_nonzero(result != 2.0**group.size - 1)) for result in results)
    if wrong:
        sys.exit(f"{name}: {counted(wrong, 'element')} wrong on rank {group.rank}")


def _calls(group: Group, runs: dict[str, Runner]) -> dict[str, int]:
    """Return the number of calls in a round of each contender, which is the same on all ranks."""
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
    measure_here(connect())
