"""A report as a Markdown page: machine, figures, sweep, rivals, and missing measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memory_bench.figures import Figure
from treefold.bench.results import BASELINE_HEADER, HEADER, Run, WorkRow, baseline_rows, format_spread, row_cells
from treefold.cli.tables import markdown_table

_FIGURES_HEADER = ("figure", "wanted", "measured", "reached")
_READING = """
Times are medians of interleaved repeats; in brackets the quartiles. A ratio is taken within each round, then the median
over the rounds.

**% of limit**: the time of the same memory traffic (the same arrays, read and written by the same
threads, without arithmetic, by the fastest of several loops) over treefold's. **peer / treefold**: above 1, treefold
is faster. **#wrong**: elements of all results, compared bit by bit with an exact oracle before and after the timing;
peers that add in the dtype itself round more often, which shows there. GB = 10⁹ bytes; sizes are per replica.

**gloo and MPI** run a process for each replica, and treefold is one process here: their ratios compare eight processes
with one on the same cores, and count what travels between processes. Compare processes with processes on the
[page of ranks](ranks-2026-11-25.md), where 16 MiB in place on 4 ranks take gloo 4.4 times as long.

**Timed calls** run on values like gradients, which are written again before each call in place; in place, contributions
of less than 8 MiB in all are zeros.
"""


def make_page(
    run: Run, rows: Mapping[str, WorkRow], figures: Sequence[Figure], *, picture: str, sweep: Sequence[str]
) -> str:
    """Return the page; ``sweep`` names the rows that belong to the representative sweep."""
    verdicts = [(figure, figure.judge(rows)) for figure in figures]
    words = {True: "yes", False: "**no**", None: "not measured"}
    judged = [[f.work, f.wanted, verdict.measured, words[verdict.is_reached]] for f, verdict in verdicts]
    parts = [
        f"# Host memory, {run.date}",
        _facts(run),
        f"![Bandwidth over size, and gradient batches, beside the limit and the peers]({picture})",
        _READING.strip(),
        "## Figures",
        markdown_table(_FIGURES_HEADER, judged),
        "## Sweep: all-reduce in place",
        markdown_table(HEADER, [row_cells(rows[key]) for key in sweep if key in rows]),
        "## Other dtypes, places and numbers of replicas",
        markdown_table(
            ("replicas", *HEADER), [[str(r.devices), *row_cells(r)] for k, r in rows.items() if k not in sweep]
        ),
        "## Peers and variants",
        markdown_table(BASELINE_HEADER, baseline_rows(list(rows.values()))),
        "## Not measured",
        _missing(
            run, rows, [(figure.work, verdict.measured) for figure, verdict in verdicts if verdict.is_reached is None]
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _facts(run: Run) -> str:
    lines = [f"- {name}: {fact}" for name, fact in run.machine.items()]
    lines.append("- versions: " + ", ".join(f"{name} {version}" for name, version in run.versions.items()))
    if run.copy_gb_per_s is not None:
        lines.append(f"- plain copy, all threads: {format_spread(run.copy_gb_per_s, 1, 1)} GB/s read + written")
    lines.append(f"- made by `{run.command}`")
    return "\n".join(lines)


def _missing(run: Run, rows: Mapping[str, WorkRow], figures: Sequence[tuple[str, str]]) -> str:
    reasons = dict.fromkeys(
        f"- {baseline.peer}, {row.name} {row.dtype} {row.placement}: {baseline.note}"
        for row in rows.values()
        for baseline in row.rivals
        if baseline.time_s is None
    )
    lines = [*reasons, *(f"- {work}: {reason}" for work, reason in figures), *(f"- {note}" for note in run.notes)]
    return "\n".join(lines) or "Nothing was left out."
