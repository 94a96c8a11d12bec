"""One work after another: check, measure against the limit, measure against baselines, check again."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from treefold.bench.arrays import Arrays, check_call, make_runner
from treefold.bench.baselines import Measured
from treefold.bench.clock import (
    Pace,
    Rounds,
    Runner,
    calls_per_round,
    clocked,
    interleave,
    spread_of_calls,
    spread_of_ratios,
)
from treefold.bench.limit import best_of, find_fastest, make_loops
from treefold.bench.results import BaselineRow, WorkRow
from treefold.bench.work import Work
from treefold.errors import BenchError, PeerError
from treefold.execution import native
from treefold.execution.host import available_memory

_OURS = "treefold"

#: Other processes' threads spin for a while when their work is done; this long, and they sleep.
_PAUSE_S = 0.004


#: Memory for contributions, results, and a library's temporary arrays, in units of all contributions.
_BASELINE_COPIES = 3
_LARGE_BYTES = 400 << 20


@dataclass(frozen=True, slots=True)
class Progress:
    """Callbacks for a progress display: ``begin`` gets a measurement's name, and ``tick`` follows each turn."""

    begin: Callable[[str], object] = lambda name: None  # noqa: ARG005 - nobody waits
    tick: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class Variant:
    """Another call of treefold on the same contributions, measured as a baseline under this name."""

    form: str
    work: Work


def measure(
    work: Work, pace: Pace, *, baselines: Iterable[Measured] = (), variants: Sequence[Variant] = (), progress: Progress
) -> WorkRow:
    """Return the row of one work.

    Each baseline is measured in turns with treefold alone. Fewer arrays then exist at once, and no third library evicts
    the caches.
    """
    work.check()
    native.set_num_threads(work.threads)
    _check_memory(work)
    arrays = Arrays(work)
    progress.begin(f"{work.name} {work.dtype}")
    wrong = check_call(arrays, work)
    calls = {_OURS: make_runner(arrays, work)}
    loops = _prepared_loops(arrays, work)
    # A short work is called several times in a row, so that a round is long beside the clock and the change of turns.
    pace = dataclasses.replace(pace, calls=calls_per_round(min(calls[_OURS](3))))
    for variant in variants:
        calls[variant.form] = make_runner(arrays, variant.work)
    times = interleave(calls | loops, pace, tick=progress.tick)
    beside = [_baseline_row(_OURS, variant.form, times[variant.form], times[_OURS]) for variant in variants]
    for baseline in baselines:
        beside += _against(baseline, work, calls[_OURS], pace, progress)
    if variants:
        checked = [check_call(arrays, variant.work) for variant in variants]
        beside[: len(variants)] = [
            dataclasses.replace(one, wrong=count) for one, count in zip(beside, checked, strict=False)
        ]
    wrong += check_call(arrays, work)
    row = _row(work, pace, times[_OURS], wrong=wrong, beside=tuple(beside))
    if not loops:
        return row
    limit_by, limit = best_of({name: times[name] for name in loops})
    shares = spread_of_ratios(limit, times[_OURS])
    return dataclasses.replace(row, limit_by=limit_by, limit_s=spread_of_calls(limit), of_limit=shares)


def _prepared_loops(arrays: Arrays, work: Work) -> dict[str, Runner]:
    """Prepare the contributions, and return the loops that come near the memory's limit, if there are any."""
    arrays.clear() if work.placement == "in-place" and arrays.is_small else arrays.load_gradients()
    loops = {name: clocked(loop) for name, loop in make_loops(arrays, work).items()}
    return {name: loops[name] for name in find_fastest(loops)} if loops else {}


def _against(baseline: Measured, work: Work, ours: Runner, pace: Pace, progress: Progress) -> list[BaselineRow]:
    """Return the row of each form of one baseline, or one row with the reason why it cannot do the work."""
    progress.begin(f"{work.name} {work.dtype} against {baseline.name}")
    needed, available = _BASELINE_COPIES * work.nbytes * work.devices, available_memory()
    if available is not None and needed > available:
        note = f"needs about {needed / 1e9:.0f} GB of memory, {available / 1e9:.0f} GB are free"
        return [BaselineRow(baseline.name, "", note=note)]
    try:
        forms = baseline.prepare(work)
        wrong = {form: baseline.count_wrong(form) for form in forms}
        runners: dict[str, Runner] = {_OURS: ours} | {form: functools.partial(baseline.time, form) for form in forms}
        times = interleave(runners, pace, pause_s=_PAUSE_S, tick=progress.tick)
        baseline.drop()
        if work.nbytes * work.devices > _LARGE_BYTES:
            baseline.close()  # allocators keep what they have; the next one may need it
    except PeerError as error:
        return [BaselineRow(baseline.name, "", note=str(error))]
    return [dataclasses.replace(_baseline_row(baseline.name, f, times[f], times[_OURS]), wrong=wrong[f]) for f in forms]


def _baseline_row(name: str, form: str, its: Rounds, ours: Rounds) -> BaselineRow:
    return BaselineRow(name, form, spread_of_calls(its), spread_of_ratios(its, ours))


def _row(work: Work, pace: Pace, times: Rounds, *, wrong: int, beside: tuple[BaselineRow, ...]) -> WorkRow:
    return WorkRow(
        name=work.name,
        nbytes=work.nbytes,
        count=work.count,
        time_s=spread_of_calls(times),
        tensors=len(work.shapes),
        dtype=work.dtype,
        op=work.op,
        devices=work.devices,
        placement=work.placement,
        accumulate=work.accumulate,
        threads=native.num_threads(),
        calls=pace.rounds * pace.calls,
        wrong=wrong,
        rivals=beside,
    )


def _check_memory(work: Work) -> None:
    """Refuse work that would make the machine swap."""
    needed = work.nbytes * work.devices * (2 if work.placement != "in-place" else 1)
    available = available_memory()
    if available is not None and needed > available:
        raise BenchError.memory(work.name, needed, available)
