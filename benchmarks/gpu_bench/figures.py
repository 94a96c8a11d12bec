"""The figures that treefold sets itself on GPUs, and whether measurements reach them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpu_bench.measure import Measured
from gpu_bench.tasks import (
    ADVERSARIAL,
    BOTH,
    COPY,
    EXECUTORS,
    FOLDS,
    FOREACH,
    LOOP,
    MODELS,
    PAGEABLE,
    PINNED,
    SEVERAL,
    SMALL,
    adversarial_name,
    fold_name,
)
from treefold.bench.clock import Spread, spread_of_calls
from treefold.bench.results import format_spread

NOT_MEASURED = "not measured"
#: Of the copy bandwidth. Float64 has more arithmetic for each byte than the others, float16 has no bound.
_LEAST = {"float32": 0.90, "bfloat16": 0.90, "float64": 0.70}
HEADER = ("work", "wanted", *(f"treefold, {executor}" for executor in EXECUTORS), f"reached by {EXECUTORS[0]}")


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that is to be reached.

    Attributes:
        task: The name of the task.
        work: The measured quantity, in words.
        read: Returns the number that decides, from the measurement of a task and a contender's name.
        least: The lower bound. None without one.
        most: The upper bound. None without one.
        factor: A factor for the number and bounds when they are shown.
        digits: How many digits are shown after the point.
        unit: The unit that is shown.

    """

    task: str
    work: str
    read: Callable[[Measured, str], Spread]
    least: float | None = None
    most: float | None = None
    factor: float = 1.0
    digits: int = 2
    unit: str = ""

    @property
    def wanted(self) -> str:
        """The bound in words."""
        sign, bound = ("≥", self.least) if self.least is not None else ("≤", self.most)
        return "shown" if bound is None else f"{sign} {bound * self.factor:.{self.digits}f}{self.unit}"

    def show(self, measured: Mapping[str, Measured], contender: str) -> str:
        """Return a contender's number with its quartiles."""
        spread = self._spread(measured, contender)
        if spread is None:
            return NOT_MEASURED
        return format_spread(spread, self.factor, self.digits) + self.unit

    def verdict(self, measured: Mapping[str, Measured], *, is_shrunk: bool = False) -> str:
        """Return whether the first executor reaches the figure, in words. With wrong elements, none does."""
        contender = EXECUTORS[0]
        spread = self._spread(measured, contender)
        if spread is None:
            return NOT_MEASURED
        found = measured[self.task]
        if found.wrong[contender]:
            return f"not reached: {found.wrong[contender]} elements are wrong"
        if found.executors[contender] != EXECUTORS[0]:
            return f"not judged: the plan ran on the {found.executors[contender]} executor"
        if is_shrunk:
            return "not judged: other sizes"
        if self.least is None and self.most is None:
            return "-"
        is_reached = spread.median >= self.least if self.least is not None else spread.median <= (self.most or 0.0)
        return "reached" if is_reached else "not reached"

    def _spread(self, measured: Mapping[str, Measured], contender: str) -> Spread | None:
        found = measured.get(self.task)
        if found is None:
            return None
        try:
            return self.read(found, contender)
        except KeyError:  # the contender, or what it is compared with, did not run
            return None


def make_figures() -> list[Figure]:
    """Return the figures in the order in which they were set. Figures without a bound are only shown."""
    figures = [
        Figure(name, f"{name} in place, of the copy bandwidth", _share(COPY), least=_LEAST.get(dtype))
        for dtype, name in ((dtype, fold_name(dtype, op)) for dtype, op in FOLDS)
    ]
    hostile = map(adversarial_name, ADVERSARIAL)
    figures += [Figure(name, f"{name}, of the copy bandwidth", _share(COPY)) for name in hostile]
    for model in MODELS:
        figures += [
            Figure(model, f"{model} × 8, one batch in place, of the copy bandwidth", _share(COPY), least=0.85),
            Figure(model, f"{model} × 8, against {LOOP}", _speedup(LOOP), least=5, digits=1, unit=" ×"),
            Figure(model, f"{model} × 8, against {FOREACH}", _speedup(FOREACH), least=2, digits=1, unit=" ×"),
        ]
    words = f"{SMALL} in place, call to enqueued"
    figures.append(Figure(SMALL, words, _enqueued, most=60e-6, factor=1e6, digits=0, unit=" µs"))
    for name, least in ((PINNED, 0.85), (PAGEABLE, None)):
        words = f"256 MiB all-reduce, {name}, of the bus with {BOTH}"
        figures.append(Figure(name, words, _share(BOTH), least=least))
    figures.append(Figure(SEVERAL, "256 MiB all-reduce, all GPUs", _time, factor=1e3, unit=" ms"))
    return figures


def _share(limit: str) -> Callable[[Measured, str], Spread]:
    return lambda measured, contender: measured.share(contender, limit)


def _speedup(other: str) -> Callable[[Measured, str], Spread]:
    return lambda measured, contender: measured.speedup(contender, other)


def _enqueued(measured: Measured, contender: str) -> Spread:
    return spread_of_calls(measured.enqueued[contender])


def _time(measured: Measured, contender: str) -> Spread:
    return spread_of_calls(measured.times[contender])
