"""``treefold plan``: a machine in, its best plan out; with its proof, its price, and its pictures."""

from __future__ import annotations

import json as json_text
import platform
from collections.abc import Sequence
from pathlib import Path

import typer

from treefold import __version__
from treefold.cli.errors import CommandError
from treefold.cli.planning import options
from treefold.cli.planning.machines import read_machine
from treefold.cli.planning.methods import OTHERS, TREES, Prediction, best_of, parse_sizes, plan_methods, predict
from treefold.cli.planning.outputs import check_outputs, write_picture
from treefold.cli.planning.published import describe_checks
from treefold.cli.planning.words import describe_packing, describe_predictions, list_checks, machine_notes, to_plain
from treefold.cost import simulate
from treefold.cost.published import CHECKED_FROM
from treefold.export.dot import to_dot
from treefold.files import write_atomically
from treefold.plan import Plan
from treefold.planners.choose import Choice, choose
from treefold.planners.ring import RingPacking, pack_rings
from treefold.planners.tree_packing import TreePacking, optimal_packing
from treefold.report.plan_page import PlanStory, render_plan_page
from treefold.report.plan_picture import draw_packing
from treefold.report.trace import write_trace
from treefold.timeline import Timeline
from treefold.topology import Topology

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
    check_outputs({"--draw": draw, "--trace": trace, "--dot": dot, "--save": save})
    machine = read_machine(topology, devices, nvlinks)
    sizes = parse_sizes(size, _SIZES, machine)
    if packs is not None and packs > sizes[0]:
        raise CommandError.packs_of_bytes(packs, sizes[0])
    packing = optimal_packing(machine, packs=packs)
    plans = plan_methods(machine, packing)
    rings = pack_rings(machine)
    predictions = predict(plans, machine, sizes, rings=rings) if len(machine.devices) > 1 else ()
    choice = choose(machine) if table else None
    describe = _as_json if json else _in_words
    typer.echo(describe(machine, packing, predictions, choice, rings))
    trees = plans[TREES]
    if draw is not None:
        _draw(draw, machine, packing, trees, predictions, rings, sizes[-1])
    if trace is not None:
        write_atomically(trace, write_trace(simulate(trees, machine, sizes[-1]), machine))
    if dot is not None:
        write_atomically(dot, to_dot(machine, packing))
    if save is not None:
        write_atomically(save, trees.to_json())
    for path in (draw, trace, dot, save):
        if path is not None:
            _say(f"Written: {path}", quiet=json)


def _say(sentence: str, *, quiet: bool) -> None:
    """Print where a file is; on stderr where stdout is JSON."""
    typer.echo(sentence, err=quiet)


def _as_json(
    machine: Topology,
    packing: TreePacking,
    predictions: Sequence[Prediction],
    choice: Choice | None,
    rings: RingPacking,
) -> str:
    plain = to_plain(machine, packing, predictions)
    if predictions:
        plain |= {"rings": [list(order) for order in rings.orders], "checked_from_bytes": CHECKED_FROM}
    plain |= {} if choice is None else {"size_table": str(choice.table), "reasons": list(choice.reasons)}
    return json_text.dumps(plain, indent=2, ensure_ascii=False)


def _in_words(
    machine: Topology,
    packing: TreePacking,
    predictions: Sequence[Prediction],
    choice: Choice | None,
    rings: RingPacking,
) -> str:
    lines = [*(f"note: {note}" for note in machine_notes(machine)), describe_packing(machine, packing)]
    if predictions:
        lines += ["", "predicted", *_predicted(machine, predictions, rings)]
    if choice is not None:
        lines += ["", f"size table: {choice.table}", *choice.reasons]
    return "\n".join(lines)


def _predicted(machine: Topology, predictions: Sequence[Prediction], rings: RingPacking) -> list[str]:
    if not predictions:
        return []
    return [describe_predictions(predictions, machine), "", describe_checks(machine, rings)]


def _draw(
    path: Path,
    machine: Topology,
    packing: TreePacking,
    trees: Plan,
    predictions: Sequence[Prediction],
    rings: RingPacking,
    nbytes: int,
) -> None:
    timeline = _shown_timeline(machine, packing, trees, nbytes)
    svg, html = draw_packing(machine, packing, timeline), ""
    if path.suffix.lower() == ".html":
        story = PlanStory(
            machine,
            packing,
            trees,
            timeline,
            times_by_method(predictions),
            table="\n".join(_predicted(machine, predictions, rings)),
            words=describe_packing(machine, packing),
            checks=list_checks(machine, packing),
            facts=(("versions", f"treefold {__version__}, Python {platform.python_version()}"),),
        )
        html = render_plan_page(story)
    write_picture(path, svg=svg, html=html)


def _shown_timeline(machine: Topology, packing: TreePacking, trees: Plan, nbytes: int) -> Timeline:
    """Return the timeline of a picture: with so few chunks that they can be told apart."""
    largest = nbytes * float(max(tree.share for tree in packing.trees))
    return simulate(trees, machine, nbytes, chunk_bytes=max(largest / _SHOWN_CHUNKS, 1.0))


def times_by_method(predictions: Sequence[Prediction]) -> dict[str, list[tuple[float, float]]]:
    """Return (bytes, seconds) of the best of treefold's methods, and of the others."""
    sizes = list(dict.fromkeys(prediction.nbytes for prediction in predictions))
    if not sizes:
        return {}
    times = {"treefold": [(float(s), best_of(predictions, s).seconds) for s in sizes]}
    for name in OTHERS:
        times[name] = [(float(s), best_of(predictions, s, [name]).seconds) for s in sizes]
    return times
