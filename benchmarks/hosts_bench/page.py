"""The measurements as a table in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from hosts_bench.measure import Measured

_HOW = (
    "Median / best; the part of X\\* that is reached. X\\* is what treefold's planner proves to be the most bytes per"
    " second of a value per host, where a rate carries 1448 bytes for TCP in a frame of 1514. Rows of few bytes: time."
)


def make_page(results: Sequence[Measured], baselines: Sequence[str]) -> str:
    """Return the table, with missing baselines and wrong results below it."""
    head = ["network (Mbit/s)", "ranks", "value", "X\\*, MB/s", *baselines]
    lines = [_HOW, "", _line(head), _line(["---"] * len(head))]
    lines += [_line(_cells(result, baselines)) for result in results]
    notes = {f"{name}: {reason}" for result in results for name, reason in result.missing.items()}
    notes |= {
        f"{name} got {count} elements wrong in {result.scene.name}"
        for result in results
        for name, count in result.wrong.items()
        if count
    }
    return "\n".join([*lines, "", *(f"- {note}" for note in sorted(notes))])


def _cells(result: Measured, baselines: Sequence[str]) -> list[str]:
    row = result.row
    value = f"{row.nbytes >> 20} MiB" if row.nbytes >= 1 << 20 else f"{row.nbytes >> 10} KiB"
    shown = [row.network.name, result.scene.name, value, f"{result.best_bytes_per_s / 1e6:.2f}"]
    return [*shown, *(_figure(result, baseline) for baseline in baselines)]


def _figure(result: Measured, baseline: str) -> str:
    figures = result.figures(baseline)
    if figures is None:
        return "–"
    if result.row.is_latency:
        return " / ".join(f"{seconds * 1e6:.0f} µs" for seconds in figures)
    return " / ".join(f"{part:.2f}" for part in figures)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
