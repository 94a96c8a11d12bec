"""``treefold plan``: a machine in, its best plan out; with its proof, its price, and its pictures."""

from __future__ import annotations

import json as json_text
import platform
from collections.abc import Sequence
from pathlib import Path

import typer

from treefold import __version__
from treefold.cli.console import Block, echo, plain
from treefold.cli.planning import options
from treefold.cli.planning.here import offer_known, without_gpus
from treefold.cli.planning.machines import read_machine
from treefold.cli.planning.methods import OTHERS, Prediction, best_of, parse_sizes, predict, trees_name
from treefold.cli.planning.outputs import check_outputs, write_picture
from treefold.cli.planning.published import describe_checks
from treefold.cli.planning.words import (
    Findings,
    describe_packing,
    describe_predictions,
    list_checks,
    machine_notes,
    to_plain,
)
from treefold.cost import simulate
from treefold.cost.published import CHECKED_FROM
from treefold.errors import CommandError
from treefold.export.dot import to_dot
from treefold.files import write_atomically
from treefold.plan import Movement, Plan
from treefold.planners.choose import choose
from treefold.planners.compare import Comparison
from treefold.planners.method import Method
from treefold.report.certificate import recomputed_bound
from treefold.report.plan_page import PlanStory, render_plan_page
from treefold.report.plan_picture import draw_packing
from treefold.report.trace import write_trace

_SIZES = "4K,64K,1M,16M,256M,1G"
_SHOWN_CHUNKS = 16  # of every pack in a picture


def plan(  # noqa: PLR0913 - every option of a command is one
    *,
    topology: options.Machine = None,
    devices: options.Devices = None,
    nvlinks: options.Nvlinks = None,
    size: options.Sizes = None,
    packs: options.Packs = None,
    table: options.Table = False,
    json: options.Json = False,
    draw: options.Draw = None,
    trace: options.Trace = None,
    dot: options.Dot = None,
    save: options.Save = None,
) -> None:
    """Plan the best all-reduce for a machine: the plan, the proof that no other is faster, the predicted times."""
    check_outputs({"--draw": draw, "--trace": trace, "--dot": dot, "--save": save}, plans=True)
    machine = read_machine(topology, devices, nvlinks)
    sizes = parse_sizes(size, _SIZES, machine)
    if packs is not None and packs > sizes[0]:
        raise CommandError.packs_of_bytes(packs, sizes[0])
    comparison = Comparison(machine)
    trees = comparison.movement(trees_name(packs))
    timeline = comparison.times(trees_name(packs)).timeline(sizes[-1]) if trace is not None else None
    found = _find(comparison, sizes, packs, has_all=json, has_table=table)
    if json:
        typer.echo(_as_json(found))
    else:
        echo(*_in_words(found), *(offer_known("plan") if topology is None and without_gpus(machine) else ()))
    if draw is not None:
        _draw(draw, found, trees, sizes[-1])
    if trace is not None and timeline is not None:
        write_atomically(trace, write_trace(timeline, machine))
    if dot is not None:
        write_atomically(dot, to_dot(machine, found.packing))
    if save is not None:
        write_atomically(save, _as_plan(trees, comparison.methods[trees_name(packs)]).to_json())
    for path in (draw, trace, dot, save):
        if path is not None:
            typer.echo(f"Written: {path}", err=json)  # stdout is JSON


def _find(
    comparison: Comparison, sizes: Sequence[int], packs: int | None, *, has_all: bool, has_table: bool
) -> Findings:
    """Plan and predict: all methods in JSON, and in text those that may be the fastest."""
    methods = comparison.methods
    packing = methods.packer.packing(packs)
    return Findings(
        methods.topology,
        packing,
        recomputed_bound(packing, methods.topology),
        predict(comparison, sizes, packs, only_near=not has_all) if len(packing.devices) > 1 else (),
        methods.rings,
        choose(comparison) if has_table else None,
    )


def _as_json(found: Findings) -> str:
    plain = to_plain(found)
    if found.predictions:
        plain |= {"rings": [list(order) for order in found.rings.orders], "checked_from_bytes": CHECKED_FROM}
    if found.table is not None:
        plain |= {"size_table": str(found.table), "reasons": list(found.table.reasons)}
    return json_text.dumps(plain, indent=2, ensure_ascii=False)


def _in_words(found: Findings) -> list[Block]:
    blocks = [*(f"note: {note}" for note in machine_notes(found.topology)), *describe_packing(found)]
    if found.predictions:
        blocks += ["", "predicted", *_predicted(found)]
    if found.table is not None:
        blocks += ["", f"size table: {found.table}", *found.table.reasons]
    return blocks


def _predicted(found: Findings) -> list[Block]:
    if not found.predictions:
        return []
    table = describe_predictions(found.predictions, found.topology)
    return [table, "", describe_checks(found.topology, found.rings)]


def _as_plan(movement: Movement, method: Method) -> Plan:
    """Return the plan that any backend can run."""
    return Plan(
        leaves=movement.leaves,
        buffers=movement.buffers,
        steps=movement.steps,
        collective="all_reduce",
        algorithm=method.words,
        paths=("",),
        notes=method.notes,
    )


def _draw(path: Path, found: Findings, trees: Movement, nbytes: int) -> None:
    """Draw the plan with so few chunks that they can be told apart."""
    largest = nbytes * float(max(tree.share for tree in found.packing.trees))
    timeline = simulate(trees, found.topology, nbytes, chunk_bytes=max(largest / _SHOWN_CHUNKS, 1.0))
    svg, html = draw_packing(found.topology, found.packing, timeline), ""
    if path.suffix.lower() == ".html":
        story = PlanStory(
            found.topology,
            found.packing,
            trees,
            timeline,
            times_by_method(found.predictions),
            table=plain(_predicted(found)),
            words=plain(describe_packing(found)),
            checks=list_checks(found),
            facts=(("versions", f"treefold {__version__}, Python {platform.python_version()}"),),
        )
        html = render_plan_page(story)
    write_picture(path, svg=svg, html=html)


def times_by_method(predictions: Sequence[Prediction]) -> dict[str, list[tuple[float, float]]]:
    """Return (bytes, seconds) of the best of treefold's methods, and of the others."""
    sizes = list(dict.fromkeys(prediction.nbytes for prediction in predictions))
    if not sizes:
        return {}
    times = {"treefold": [(float(s), best_of(predictions, s).seconds) for s in sizes]}
    for name in OTHERS:
        times[name] = [(float(s), best_of(predictions, s, [name]).seconds) for s in sizes]
    return times
