"""``treefold plan``: the best plan of a machine, with its proof, its price, and its pictures."""

from __future__ import annotations

import contextlib
import gc
import json as json_text
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from treefold import __version__
from treefold.cli.console import Block, echo, steps
from treefold.cli.planning import options, words
from treefold.errors import CommandError
from treefold.errors.words import counted
from treefold.files import write_atomically
from treefold.plan import Movement, Plan
from treefold.planners.method import Method
from treefold.topology.cost import simulate
from treefold.topology.drawing.certificate import recomputed_bound
from treefold.topology.drawing.exports import to_dot, write_trace
from treefold.topology.drawing.packs import packs_of
from treefold.topology.drawing.page import Page, Section, render_page
from treefold.topology.planning.compare import Comparison, choose
from treefold.topology.planning.registry import RINGS, entry_of
from treefold.topology.timeline import Timeline

_SIZES = "4K,64K,1M,16M,256M,1G"
_SHOWN_CHUNKS = 16  # of every pack in a picture


def plan(  # noqa: PLR0913 - every option of a command is one
    given: options.Given = None,
    *,
    topology: options.Machine = None,
    devices: options.Devices = None,
    nvlinks: options.Nvlinks = None,
    size: options.Sizes = None,
    packs: options.Packs = None,
    table: options.WithTable = False,
    json: options.Json = False,
    draw: options.Draw = None,
    trace: options.Trace = None,
    dot: options.Dot = None,
    save: options.Save = None,
) -> None:
    """Plan the best all-reduce for a machine: the plan, the proof that no other is faster, the predicted times."""
    options.check_outputs({"--draw": draw, "--trace": trace, "--dot": dot, "--save": save})
    named = options.only_one(given, topology)
    machine = options.read_machine(named, devices, nvlinks)
    sizes = words.parse_sizes(size, _SIZES, machine)
    if packs is not None and packs > sizes[0]:
        raise CommandError(
            f"--packs got {packs} for {counted(sizes[0], 'byte')}. Every pack needs a byte at least; ask for fewer."
        )
    comparison = Comparison(machine)
    found = _find(comparison, sizes, packs, has_all=json, has_table=table)
    chosen = found.chosen
    name = words.trees_name(packs) if chosen is None else chosen.name
    movement = comparison.movement(name)
    if draw is not None:
        _draw(draw, found, movement, sizes[-1])
    if trace is not None:
        timeline = comparison.times(name).timeline(sizes[-1])
        write_atomically(trace, write_trace(_at_predicted_time(timeline, chosen), machine))
    if dot is not None:
        write_atomically(dot, to_dot(machine, packs_of(movement)))
    if save is not None:
        write_atomically(save, _as_plan(movement, comparison.methods[name]).to_json())
    if json:
        typer.echo(_as_json(found))
    else:
        echo(*_in_words(found), *options.offer_known("plan", named, machine))
    options.say_written(draw, trace, dot, save, err=json)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Stop the cyclic garbage collector, which visits every object: planning makes very many, and no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_uncollected()
def _find(
    comparison: Comparison, sizes: Sequence[int], packs: int | None, *, has_all: bool, has_table: bool
) -> words.PlanFindings:
    """Plan and predict: every method for JSON, and only those that may be the fastest for text."""
    methods = comparison.methods
    with steps(1 + len(sizes)) as begin:
        begin(words.PACKING)
        packing = methods.packer.packing(packs)
        is_one = len(packing.devices) == 1
        predictions = () if is_one else words.predict(comparison, sizes, packs, begin=begin, may_win=not has_all)
    ours = words.OURS if packs is None else (entry_of(words.trees_name(packs)).label,)  # ``--packs`` is obeyed.
    return words.PlanFindings(
        methods.topology,
        packing,
        recomputed_bound(packing, methods.topology),
        predictions,
        ours,
        None if is_one else _choose(comparison, words.best_of(predictions, sizes[-1], ours), packs),
        methods.rings,
        choose(comparison) if has_table else None,
    )


def _choose(comparison: Comparison, best: words.Prediction, packs: int | None) -> words.Chosen:
    names = (*words.our_names(comparison, packs), RINGS)
    name = next(name for name in names if entry_of(name).label == best.method)
    return words.Chosen(name, best, packs_of(comparison.movement(name)))


def _at_predicted_time(timeline: Timeline, chosen: words.Chosen | None) -> Timeline:
    """Return a timeline scaled to the predicted time, so that a plan has one time wherever it is shown."""
    return timeline if chosen is None else timeline.lasting(chosen.prediction.seconds)


def _as_json(found: words.PlanFindings) -> str:
    plain = words.to_plain(found)
    if found.predictions:
        plain |= {"rings": [list(order) for order in found.rings.orders], "checked_from_bytes": words.CHECKED_FROM}
    if found.table is not None:
        plain |= {"size_table": str(found.table), "reasons": list(found.table.reasons)}
    return json_text.dumps(plain, indent=2, ensure_ascii=False)


def _in_words(found: words.PlanFindings) -> list[Block]:
    lines: list[Block] = [found.title, *(f"note: {note}" for note in words.machine_notes(found.topology))]
    if found.chosen is not None:
        lines += ["", "predicted", words.tabulate_predictions(found)]
        lines += ["", words.describe_checks(found.topology, found.rings), "", words.describe_plan(found)]
    if found.table is not None:
        lines += ["", f"size table: {found.table}", *found.table.reasons]
    if found.chosen is not None:  # last, for they are many lines
        lines += ["", "packs of this plan", words.tabulate_packs(found.chosen.packs)]
    return lines


def _as_plan(movement: Movement, method: Method) -> Plan:
    """Return the movement as a plan that any backend can run."""
    return Plan(
        leaves=movement.leaves,
        buffers=movement.buffers,
        steps=movement.steps,
        collective="all_reduce",
        algorithm=method.words,
        paths=("",),
        notes=method.notes,
    )


def _draw(path: Path, found: words.PlanFindings, movement: Movement, nbytes: int) -> None:
    """Draw the plan in chunks few enough to be told apart, scaled to its predicted time."""
    from treefold.topology.drawing.plan_page import (  # noqa: PLC0415 - most plans are printed alone
        PlanStory,
        draw_packing,
        render_plan_page,
    )

    packs, title = packs_of(movement), found.title
    largest = nbytes * max((pack.share for pack in packs), default=1.0)
    drawn = simulate(movement, found.topology, nbytes, chunk_bytes=max(largest / _SHOWN_CHUNKS, 1.0))
    timeline = _at_predicted_time(drawn, found.chosen)
    svg, html = draw_packing(found.topology, found.packing, packs, timeline, title=title), ""
    if path.suffix.lower() == ".html" and found.chosen is not None:
        story = PlanStory(
            title,
            found.topology,
            found.packing,
            movement,
            timeline,
            times_by_method(found),
            tables=(words.tabulate_predictions(found), words.tabulate_packs(packs)),
            words=(words.describe_checks(found.topology, found.rings), words.describe_plan(found)),
            method=found.chosen.prediction.method,
            checks=words.list_checks(found),
            facts=(("versions", f"treefold {__version__}, Python {platform.python_version()}"),),
        )
        html = render_plan_page(story)
    elif path.suffix.lower() == ".html":
        html = render_page(Page(title, sections=(Section("The machine", "", svg),)))
    options.write_picture(path, svg=svg, html=html)


def times_by_method(found: words.PlanFindings) -> dict[str, list[tuple[float, float]]]:
    """Return (bytes, seconds) of the best of treefold's methods, and of each baseline."""
    sizes = list(dict.fromkeys(prediction.nbytes for prediction in found.predictions))
    names = {"treefold": found.ours} | {name: [name] for name in words.BASELINES.values()}
    return {
        name: [(float(size), words.best_of(found.predictions, size, of).seconds) for size in sizes]
        for name, of in names.items()
    }
