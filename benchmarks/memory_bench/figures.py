"""The figures that treefold sets itself for host memory: the measurement for each, and whether it is reached."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from treefold.bench.clock import Pace
from treefold.bench.results import BaselineRow, WorkRow, format_spread
from treefold.bench.sweep import Variant
from treefold.bench.work import Work, shapes_of_model, shapes_of_size
from treefold.errors.words import bytes_in_words

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_EVERYONE = ("numpy", "torch", "tensorflow", "jax", "gloo", "mpi")


@dataclass(frozen=True, slots=True)
class Entry:
    """One work of the report, at its pace, with the libraries that it is compared with."""

    key: str
    work: Work
    pace: Pace
    libraries: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()
    is_in_sweep: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The measurement of a figure, and whether it reaches the figure; None if there is no measurement."""

    measured: str
    is_reached: bool | None


_MISSING = Verdict("not measured", None)
#: Judges the rows of a report, by their keys.
Judge = Callable[[Mapping[str, WorkRow]], Verdict]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure: the work in words, the bound, and the function that judges rows."""

    work: str
    wanted: str
    judge: Judge


def make_entries(pace: Pace, *, threads: int = 2) -> list[Entry]:
    """Return everything that the report measures, with the longest measurements last."""
    short = replace(pace, rounds=max(3, pace.rounds // 3), warmup=1)
    base = Work("", (), threads=threads)
    entries = []
    for nbytes in (4 * _KIB * 4**step for step in range(9)):
        work = _sized(base, nbytes)
        variants: tuple[Variant, ...] = ()
        if nbytes in {16 * _MIB, 64 * _MIB}:
            variants = (Variant("native accumulation", replace(work, accumulate="native")),)
        libraries = _EVERYONE if nbytes <= 64 * _MIB else ()
        entries.append(Entry(f"in-place {nbytes}", work, pace, libraries, variants, is_in_sweep=True))
    for nbytes in (16 * _MIB, 64 * _MIB):
        given = replace(_sized(base, nbytes), placement="out-of-place")
        new = Variant("into new results", replace(given, placement="new"))
        entries.append(Entry(f"given {nbytes}", given, pace, variants=(new,)))
        for dtype in ("bfloat16", "float16", "float64", "int32"):
            for placement in ("in-place", "out-of-place"):
                work = replace(_sized(replace(base, dtype=dtype), nbytes), placement=placement)
                entries.append(Entry(f"{dtype} {placement} {nbytes}", work, pace))
    shared = replace(_sized(base, 64 * _MIB), placement="shared")
    entries.append(Entry("shared", shared, pace, ("tensorflow",)))
    for devices in (2, 4, 8, 16, 32, 64):
        for total in (_KIB, 64 * _KIB, _MIB, 16 * _MIB, 256 * _MIB, _GIB):
            work = _sized(replace(base, devices=devices), total // devices)
            entries.append(Entry(f"n={devices} {total}", replace(work, name=f"{devices} × {work.name}"), short))
    for model, speed in (("resnet50", pace), ("bert-base", short)):
        work = replace(base, name=model, shapes=shapes_of_model(model))
        entries.append(Entry(model, work, speed, _EVERYONE, is_in_sweep=True))
    return entries


def _sized(work: Work, nbytes: int) -> Work:
    return replace(work, name=bytes_in_words(nbytes), shapes=shapes_of_size(nbytes, work.dtype))


def make_figures() -> list[Figure]:
    """Return the figures in the order in which they were set."""
    big = (16 * _MIB, 64 * _MIB)
    figures = []
    for nbytes in reversed(big):
        name = f"8 × {bytes_in_words(nbytes)}"
        figures += [
            Figure(f"{name} float32 SUM in place", "≥ 0.90 of the limit", _limit(f"in-place {nbytes}", 0.9)),
            Figure(f"{name} float32 SUM into 8 given arrays", "≥ 0.90 of the limit", _limit(f"given {nbytes}", 0.9)),
        ]
        for dtype, least in (("bfloat16", 0.75), ("float16", 0.75), ("float64", 0.85), ("int32", 0.85)):
            for place, words in (("in-place", "in place"), ("out-of-place", "into given arrays")):
                wanted = f"≥ {least:.2f} of the limit" + (", goal 0.85" if least < 0.85 else "")  # noqa: PLR2004
                judge = _limit(f"{dtype} {place} {nbytes}", least)
                figures.append(Figure(f"{name} {dtype} {words}", wanted, judge))
        new = _variant(f"given {nbytes}", "into new results", most=1.15, is_inverse=False)
        native = _variant(f"in-place {nbytes}", "native accumulation", most=1.15, is_inverse=True)
        figures += [
            Figure(f"{name} into new results", "≤ 1.15 × the time into given arrays", new),
            Figure(f"{name} in place, exact against native accumulation", "≤ 1.15 ×", native),
        ]
    large, small = f"in-place {64 * _MIB}", f"in-place {64 * _KIB}"
    figures += [
        Figure(f"8 × 64 MiB against {p}", "≥ 6 × faster", _against(large, p, 6)) for p in ("jax", "gloo", "mpi")
    ]
    figures += [Figure(f"8 × 64 MiB against {p}", "≥ 2 × faster", _against(large, p, 2)) for p in ("torch", "numpy")]
    for form, least in (("eager", 1.0), ("in a function", 1.2), ("packed hierarchical copy", 1.5)):
        judge = _against("shared", "tensorflow", least, form)
        figures.append(Figure(f"8 × 64 MiB, one shared result, against TensorFlow {form}", f"≥ {least} ×", judge))
    figures.append(Figure("8 × 64 KiB in place, call to return", "≤ 40 µs", _time(small, 40e-6)))
    figures += [
        Figure(f"8 × 64 KiB against {p}", "≥ 6 × faster (goal 8)", _against(small, p, 6))
        for p in ("tensorflow", "jax", "mpi")
    ]
    for model in ("resnet50", "bert-base"):
        figures.append(Figure(f"{model} × 8 in place, one batch", "≥ 0.80 of the limit", _limit(model, 0.8)))
        figures += [Figure(f"{model} × 8 against {p}", "faster", _against(model, p, 1)) for p in _EVERYONE]
    figures.append(Figure("n = 2…64, 1 MiB…1 GiB in all", "time grows as n·S", _linear))
    return figures


def _limit(key: str, least: float) -> Judge:
    def judge(rows: Mapping[str, WorkRow]) -> Verdict:
        share = rows[key].of_limit if key in rows else None
        return _MISSING if share is None else Verdict(format_spread(share, 1, 2), share.median >= least)

    return judge


def _time(key: str, most: float) -> Judge:
    def judge(rows: Mapping[str, WorkRow]) -> Verdict:
        time = rows[key].time_s if key in rows else None
        return _MISSING if time is None else Verdict(f"{format_spread(time, 1e6, 0)} µs", time.median <= most)

    return judge


def _against(key: str, library: str, least: float, form: str | None = None) -> Judge:
    def judge(rows: Mapping[str, WorkRow]) -> Verdict:
        baselines = [
            baseline
            for baseline in _baselines_of(rows, key)
            if baseline.peer == library and form in {None, baseline.form}
        ]
        measured = [(baseline.ratio, baseline.form) for baseline in baselines if baseline.ratio is not None]
        if not measured:
            return Verdict("; ".join(baseline.note for baseline in baselines) or _MISSING.measured, None)
        ratio, name = min(measured, key=lambda pair: pair[0].median)
        return Verdict(f"{format_spread(ratio, 1, 2)} × ({name})", ratio.median >= least)

    return judge


def _variant(key: str, form: str, *, most: float, is_inverse: bool) -> Judge:
    def judge(rows: Mapping[str, WorkRow]) -> Verdict:
        ratio = next((baseline.ratio for baseline in _baselines_of(rows, key) if baseline.form == form), None)
        if ratio is None:
            return _MISSING
        if is_inverse:
            ratio = replace(ratio, median=1 / ratio.median, low=1 / ratio.high, high=1 / ratio.low)
        return Verdict(f"{format_spread(ratio, 1, 2)} ×", ratio.median <= most)

    return judge


def _baselines_of(rows: Mapping[str, WorkRow], key: str) -> Sequence[BaselineRow]:
    return rows[key].rivals if key in rows else ()


def _linear(rows: Mapping[str, WorkRow]) -> Verdict:
    """Fit time = c·(n·S)^p above 1 MiB. Linear is p = 1; p is less if caches help the smaller sizes."""
    chosen = [row for key, row in rows.items() if key.startswith("n=") and row.nbytes * row.devices >= _MIB]
    if len(chosen) < 2:  # noqa: PLR2004 - a line takes two points
        return _MISSING
    points = [(math.log(row.nbytes * row.devices), math.log(row.time_s.median)) for row in chosen]
    slope = _slope(points)
    by_total: dict[int, list[float]] = {}
    for row in chosen:
        by_total.setdefault(row.nbytes * row.devices, []).append(row.time_s.median)
    apart = max(max(times) / min(times) for times in by_total.values())
    return Verdict(
        f"t ∝ (n·S)^{slope:.2f}; at one n·S, the slowest n takes {apart:.2f} × the fastest",
        abs(slope - 1) <= 0.15 and apart <= 2,  # noqa: PLR2004 - caches bend the line by that much
    )


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes between all points (Theil and Sen), which outliers do not move."""
    pairs = itertools.combinations(points, 2)
    rises = [(one[1] - two[1]) / (one[0] - two[0]) for one, two in pairs if one[0] != two[0]]
    return sorted(rises)[len(rises) // 2]
