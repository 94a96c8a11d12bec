"""``treefold simulate``: the predicted times of plans on a machine, size by size."""

from __future__ import annotations

import functools
import json as json_text
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from treefold.cli.completion import endings
from treefold.cli.console import Block, echo, steps
from treefold.cli.planning import options, words
from treefold.cli.tables import Table
from treefold.errors import CommandError
from treefold.errors.words import bytes_in_words, seconds_in_words
from treefold.files import write_atomically
from treefold.plan import Plan, from_json
from treefold.topology import Topology
from treefold.topology.cost.simulation import MovementTimes
from treefold.topology.drawing.charts import draw_sizes
from treefold.topology.drawing.exports import write_trace
from treefold.topology.drawing.machine_drawing import draw_machine
from treefold.topology.drawing.page import Page, Section, for_screens, render_page
from treefold.topology.planning.compare import Comparison
from treefold.topology.planning.ring import RingPacking
from treefold.topology.planning.tree_packing import TreePacking

_SIZES = "4K,16K,64K,256K,1M,4M,16M,64M,256M,1G"
PlanFile = Annotated[
    str | None, typer.Option("--plan", metavar="FILE|-", help="A plan from treefold plan --save; else every method.")
]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Plot it: .html or .svg.", autocompletion=endings(*options.PICTURES)),
]


def simulate(  # noqa: PLR0913 - every option of a command is one
    given: options.Given = None,
    *,
    topology: options.Machine = None,
    devices: options.Devices = None,
    nvlinks: options.Nvlinks = None,
    plan: PlanFile = None,
    packs: options.Packs = None,
    size: options.Sizes = None,
    json: options.Json = False,
    plot: Plot = None,
    trace: options.Trace = None,
) -> None:
    """Predict what plans take on a machine: sweep sizes, plot, trace."""
    options.check_outputs({"--plot": plot, "--trace": trace})
    named = options.only_one(given, topology)
    if named == plan == "-":
        raise CommandError(
            "The machine and --plan are both '-', and there is one standard input; save one of them to a file."
        )
    machine = options.read_machine(named, devices, nvlinks)
    sizes = words.parse_sizes(size, _SIZES, machine)
    comparison = Comparison(machine)
    with steps(1 + len(sizes)) as begin:
        begin(words.PACKING)
        packing = comparison.methods.packer.packing(packs)
        first = comparison.times(words.trees_name(packs)) if plan is None else MovementTimes(_read_plan(plan), machine)
        timeline = first.timeline(sizes[-1]) if trace is not None else None
        if plan is None:
            predictions = words.predict(comparison, sizes, packs, begin=begin)
        else:
            predictions = tuple(words.Prediction(nbytes, first.simulated_s(nbytes), "this plan") for nbytes in sizes)
    rings = comparison.methods.rings if plan is None and len(machine.devices) > 1 else None
    if plot is not None:
        _plot(plot, machine, packing, predictions, rings)
    if trace is not None and timeline is not None:
        write_atomically(trace, write_trace(timeline, machine))
    if json:
        typer.echo(_as_json(machine, predictions))
    else:
        echo(*_in_words(machine, packing, predictions, rings), *options.offer_known("simulate", named, machine))
    options.say_written(plot, trace, err=json)


def _read_plan(given: str) -> Plan:
    if given == "-":
        return from_json(sys.stdin.read())
    try:
        return from_json(Path(given).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError.no_plan_file(given, error) from None


def _as_json(machine: Topology, predictions: Sequence[words.Prediction]) -> str:
    rows = [{"size": p.nbytes, "seconds": p.seconds, "method": p.method} for p in predictions]
    missing = None if machine.missing is None else str(machine.missing)
    return json_text.dumps({"topology": machine.name, "missing": missing, "predicted": rows}, indent=2)


def _in_words(
    machine: Topology, packing: TreePacking, predictions: Sequence[words.Prediction], rings: RingPacking | None
) -> list[Block]:
    title = _title(machine, predictions)
    if len(machine.devices) == 1:
        return [title, *(f"note: {note}" for note in words.machine_notes(machine))]
    checks = words.describe_checks(machine, rings)
    return [title, _describe_table(machine, packing), "", _table(predictions), "", checks]


def _title(machine: Topology, predictions: Sequence[words.Prediction]) -> str:
    """Return the time of the fastest method at the largest size, in plain words."""
    largest = [one for one in predictions if one.nbytes == predictions[-1].nbytes]
    rings = next((one for one in largest if one.method == words.RINGS_LABEL), None)
    best = largest[0] if rings is None else words.best_of(predictions, rings.nbytes)
    return words.describe_time(machine, best if len(machine.devices) > 1 else None, rings)


def _table(predictions: Sequence[words.Prediction]) -> Table:
    rows = []
    for nbytes in dict.fromkeys(prediction.nbytes for prediction in predictions):
        found = [p for p in predictions if p.nbytes == nbytes]
        rows.append([bytes_in_words(nbytes), *(f"{seconds_in_words(p.seconds)} ({p.gb_per_s:.3g})" for p in found)])
    return Table(("size", *dict.fromkeys(prediction.method for prediction in predictions)), rows)


def _describe_table(machine: Topology, packing: TreePacking) -> str:
    bound = f"at most {packing.bound_bytes_per_s / 1e9:.2f} GB/s"
    if machine.missing is not None:
        bound += f"; {machine.missing}"
    return f"predicted time (GB/s of algorithm bandwidth, {bound})"


def _plot(
    path: Path,
    machine: Topology,
    packing: TreePacking,
    predictions: Sequence[words.Prediction],
    rings: RingPacking | None,
) -> None:
    times = {
        name: [(float(p.nbytes), p.seconds) for p in predictions if p.method == name and p.seconds > 0]
        for name in dict.fromkeys(prediction.method for prediction in predictions)
    }
    title = _title(machine, predictions)
    if len(machine.devices) == 1:
        svg = draw_machine(machine)
        html = render_page(Page(title, sections=(Section("The machine", "", svg),)))
        options.write_picture(path, svg=svg, html=html)
        return
    draw = functools.partial(draw_sizes, times, title=title, bound=packing.bound_bytes_per_s)
    head, checks = _describe_table(machine, packing), words.describe_checks(machine, rings)
    sentence = f"{head[0].upper()}{head[1:]}."
    section = Section("By size", sentence, for_screens(draw, wide=960.0), checks, _table(predictions))
    options.write_picture(path, svg=draw(), html=render_page(Page(title, sections=(section,))))
