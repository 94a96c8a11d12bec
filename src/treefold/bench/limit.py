"""The limit of the memory: the traffic of a reduction without its arithmetic, by the fastest of several loops."""

from __future__ import annotations

import functools
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from treefold.bench.arrays import Array, Arrays, expected
from treefold.bench.clock import Pace, Rounds, Runner, Spread, calls_per_round, interleave
from treefold.bench.work import Work
from treefold.dtypes import itemsize
from treefold.execution import native

_COPY_BYTES = 1 << 28
_LARGE_TASK_BYTES = 8 << 20
_TRIAL = Pace(rounds=3, warmup=1)
#: An array to write, and one to read.
_Pair = tuple[Array, Array]


def make_loops(arrays: Arrays, work: Work) -> dict[str, Callable[[], None]]:
    """Return, by name, calls that read and write what ``work`` does, without its arithmetic.

    Vector loops visit the arrays as a fold does, all contributions to one element at a time, or one array after the
    other. Their tasks have different sizes, and their stores go through or around the caches. The loop ``memcpy`` is
    the C library's. Vector loops combine bytes by an exclusive or, so that reads are not optimised away: zeros stay
    zeros and other values become garbage. New results are replaced by given arrays. Without the native core, or if
    results have another size than contributions, there are no loops.
    """
    if not native.HAS_NATIVE or expected(work, 0).dtype.itemsize != itemsize(work.dtype):
        return {}
    is_in_place = work.placement == "in-place"
    targets = arrays.sources if is_in_place else arrays.given()
    columns = [
        (_as_bytes(sources), _as_bytes(ends[: work.num_results]))
        for sources, ends in zip(arrays.sources, targets, strict=True)
    ]
    loops = _vector_loops("as folded", columns, is_in_place=is_in_place)
    if work.num_results == work.devices:
        singles = [([one], [other]) for column in columns for one, other in zip(*column, strict=True)]
        loops |= _vector_loops("array by array", singles, is_in_place=is_in_place)
    if work.num_results == work.devices and not (is_in_place and work.devices == 1):
        # Nothing is copied onto itself: in place, each array takes the contents of the one before.
        shifted = [(ends[1:] + ends[:1] if is_in_place else ends, sources) for sources, ends in columns]
        pairs = [pair for column in shifted for pair in zip(*column, strict=True)]
        loops["memcpy"] = functools.partial(_copy_in_threads, _shares(pairs, native.num_threads()))
    return loops


def find_fastest(loops: Mapping[str, Runner], count: int = 3) -> list[str]:
    """Return the names of the loops with the shortest best rounds, after a short trial in turns."""
    calls = calls_per_round(min(min(run(2)) for run in loops.values()))
    times = interleave(loops, Pace(_TRIAL.rounds, _TRIAL.warmup, calls))
    return sorted(times, key=lambda name: min(map(statistics.median, times[name])))[:count]


def best_of(times: Mapping[str, Rounds]) -> tuple[str, Rounds]:
    """Return the name of the loop that was fastest most often, and the times of each round's fastest loop."""
    rounds = range(len(next(iter(times.values()))))
    winners = [min(times, key=lambda name: statistics.median(times[name][number])) for number in rounds]
    return statistics.mode(winners), tuple(times[name][number] for number, name in enumerate(winners))


def measure_copy(threads: int, *, repeats: int = 9, nbytes: int = _COPY_BYTES) -> Spread:
    """Return the bandwidth of a plain copy by ``threads`` threads, read + written, in 10⁹ bytes per second."""
    shares = _shares([(np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8))], threads)
    rates = []
    for _ in range(repeats):
        begin = time.perf_counter()
        _copy_in_threads(shares)
        rates.append(2 * nbytes / (time.perf_counter() - begin) / 1e9)
    return Spread.of(rates)


def _vector_loops(
    name: str, columns: Sequence[tuple[list[Array], list[Array]]], *, is_in_place: bool
) -> dict[str, Callable[[], None]]:
    number, level = native.DTYPES["uint8"], native.level()
    items: list[tuple[int, Sequence[Array], Sequence[Array]]] = [(number, *column) for column in columns]
    moved = sum(array.nbytes for sources, ends in columns for array in (*sources, *ends))
    traffic = functools.partial(native.traffic, items, level)
    share = -(-moved // native.num_threads())
    # Folds stream large results that are not in place; the other way round may suit a memory better.
    other_way = f"{name}, {'around' if is_in_place else 'through'} the caches"
    return {
        name: traffic,
        f"{name}, large tasks": functools.partial(traffic, task_bytes=_LARGE_TASK_BYTES),
        f"{name}, a share per thread": functools.partial(traffic, task_bytes=share),
        other_way: functools.partial(traffic, task_bytes=_LARGE_TASK_BYTES, stream=is_in_place),
    }


def _shares(pairs: Sequence[_Pair], threads: int) -> list[list[_Pair]]:
    """Return each thread's part of every pair."""
    cut = [list(zip(*(np.array_split(array, threads) for array in pair), strict=True)) for pair in pairs]
    return [[parts[thread] for parts in cut] for thread in range(threads)]


def _copy_in_threads(shares: Sequence[Sequence[_Pair]]) -> None:
    workers = [threading.Thread(target=_copy, args=(share,)) for share in shares[1:]]
    for worker in workers:
        worker.start()
    _copy(shares[0])
    for worker in workers:
        worker.join()


def _copy(pairs: Sequence[_Pair]) -> None:
    for target, source in pairs:
        np.copyto(target, source)


def _as_bytes(arrays: Sequence[Array]) -> list[Array]:
    return [array.reshape(-1).view(np.uint8) for array in arrays]
