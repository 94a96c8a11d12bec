"""A run as a picture: bandwidth over size, treefold's beside the limit and the best form of every peer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from treefold.bench.results import WorkRow
from treefold.bench.work import MODELS
from treefold.errors.words import bytes_in_words
from treefold.files import written_whole

_COLOURS = {
    "treefold": "#0f766e",
    "limit": "#9ca3af",
    "tensorflow": "#ea580c",
    "jax": "#7c3aed",
    "torch": "#dc2626",
    "numpy": "#2563eb",
    "gloo": "#a16207",
    "mpi": "#be185d",
}


def draw(rows: Sequence[WorkRow], path: Path, *, title: str) -> None:
    """Write the picture as a PNG file."""
    mpl.use("agg")
    figure = make_figure(rows, title=title)
    with written_whole(path) as file:
        figure.savefig(file, dpi=150, format="png")


def make_figure(rows: Sequence[WorkRow], *, title: str) -> Figure:
    """Return curves for sizes and dots for models, whichever there are, on logarithmic axes."""
    sizes = sorted((row for row in rows if row.name not in MODELS), key=lambda row: row.nbytes)
    models = [row for row in rows if row.name in MODELS]
    panels = [part for part in (sizes, models) if part]
    figure = Figure(figsize=(6.6 * max(1, len(panels)), 4.8), layout="constrained")
    axes: Iterable[Axes] = figure.subplots(1, max(1, len(panels)), squeeze=False)[0]
    for axis, part in zip(axes, panels, strict=True):
        if part is sizes:
            _draw_sizes(axis, part)
        else:
            _draw_models(axis, part)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11)
    return figure


def best_times(row: WorkRow) -> dict[str, float]:
    """Return the median seconds of treefold, the limit, and each peer's fastest form."""
    times = {"treefold": row.time_s.median}
    if row.limit_s is not None:
        times["limit"] = row.limit_s.median
    for baseline in row.rivals:
        if baseline.time_s is not None and baseline.peer != "treefold":
            times[baseline.peer] = min(baseline.time_s.median, times.get(baseline.peer, baseline.time_s.median))
    return times


def _draw_sizes(axis: Axes, rows: Sequence[WorkRow]) -> None:
    curves: dict[str, tuple[list[int], list[float]]] = {}
    for row in rows:
        for name, seconds in best_times(row).items():
            sizes, rates = curves.setdefault(name, ([], []))
            sizes.append(row.nbytes)
            rates.append(row.busbw_gb_per_s * row.time_s.median / seconds)
    for name, (sizes, rates) in curves.items():
        is_ours, is_limit = name == "treefold", name == "limit"
        axis.plot(
            sizes, rates, label=name, color=_COLOURS.get(name), marker="o", markersize=5 if is_ours else 3,
            linewidth=2.6 if is_ours else 1.3, linestyle="--" if is_limit else "-", zorder=3 if is_ours else 2,
        )  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    ticks = sorted({row.nbytes for row in rows})
    axis.set_xticks(ticks, [bytes_in_words(tick) for tick in ticks], rotation=45, ha="right")
    axis.minorticks_off()
    axis.set_xlabel("bytes per replica")
    axis.set_ylabel("busbw (GB/s)")
    axis.grid(visible=True, color="#e5e7eb", linewidth=0.6)
    axis.legend(frameon=False, fontsize=8)


def _draw_models(axis: Axes, rows: Sequence[WorkRow]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in best_times(row)))
    height = 0.8 / len(names)
    for index, name in enumerate(names):
        times = [(place + index * height, best_times(row).get(name)) for place, row in enumerate(rows)]
        dots = [(1e3 * seconds, place) for place, seconds in times if seconds is not None]
        # Dots, not bars: on a logarithmic axis there is no zero for a bar to begin at, and its length says nothing.
        axis.plot(
            *zip(*dots, strict=True), label=name, color=_COLOURS.get(name), marker="o", linestyle="none", zorder=3
        )
        for milliseconds, place in dots:
            axis.annotate(
                f"{milliseconds:.1f}" if milliseconds < 100 else f"{milliseconds:,.0f}",  # noqa: PLR2004 - three digits
                (milliseconds, place),
                xytext=(7, 0),
                textcoords="offset points",
                fontsize=7,
                va="center",
            )
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.margins(x=0.12)
    axis.set_yticks([place + 0.4 - height / 2 for place in range(len(rows))], [row.name for row in rows])
    axis.invert_yaxis()
    axis.set_xlabel("time of one batch of gradients (ms)")
    axis.grid(visible=True, axis="x", which="both", color="#e5e7eb", linewidth=0.6)
    axis.legend(frameon=False, fontsize=8)
