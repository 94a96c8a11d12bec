"""``treefold topology``: shows a machine, in words or drawn, or reports errors in a file."""

from __future__ import annotations

import json as json_text
from collections import Counter
from typing import Annotated

import typer

from treefold.cli.console import echo
from treefold.cli.planning import options, words
from treefold.execution.links import verify_links
from treefold.files import write_atomically
from treefold.topology import Topology
from treefold.topology.drawing.exports import to_dot
from treefold.topology.drawing.machine_drawing import but_missing, draw_machine, fitted, machine_title
from treefold.topology.drawing.machine_layout import lay_out
from treefold.topology.drawing.page import Page, Section, render_page

Known = Annotated[bool, typer.Option("--list", help="List the machines known by name.")]
VerifyFile = Annotated[
    str | None, typer.Option(metavar="FILE|-", help="Say whether a file can be read, and what it leaves open.")
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Prove this machine's links, byte by byte; takes seconds per pair of GPUs.")
]


def topology(  # noqa: PLR0913 - every option of a command is one
    given: options.Given = None,
    *,
    machine: options.Machine = None,
    devices: options.Devices = None,
    nvlinks: options.Nvlinks = None,
    draw: options.Draw = None,
    dot: options.Dot = None,
    json: options.Json = False,
    verify_file: VerifyFile = None,
    verify: Verify = False,
    known: Known = False,
) -> None:
    """Show this machine, a known one, or what a file describes."""
    if known or verify:
        echo(options.list_known() if known else str(verify_links(use_cache=False)))
        return
    named = options.only_one(given, machine, verify_file)
    options.check_outputs({"--draw": draw, "--dot": dot})
    found = options.read_machine(named, devices, nvlinks)
    if draw is not None:
        svg = draw_machine(found)
        options.write_picture(draw, svg=svg, html=_page(found, svg))
    if dot is not None:
        write_atomically(dot, to_dot(found))
    if verify_file is not None:
        typer.echo(_verdict(found))
    elif json:
        typer.echo(json_text.dumps(found.to_json(), indent=2, ensure_ascii=False))
    else:
        echo(*words.describe_machine(found), *options.offer_known("topology", named, found))
    options.say_written(draw, dot, err=json)


def _verdict(found: Topology) -> str:
    whole = f"{machine_title(found)}, {len(found.links)} directed links"
    whole = f"ok: {whole}" if found.missing is None else f"incomplete: {found.missing}\n{whole}"
    kind = "equal in both directions" if found.is_symmetric else "not all equal in both directions"
    return "\n".join([f"{whole}, {kind}", *(f"note: {note}" for note in words.machine_notes(found))])


def _page(found: Topology, svg: str) -> str:
    links = Counter((link.kind, f"{link.bytes_per_s / 1e9:.4g} GB/s") for link in found.links)
    widths = ", ".join(f"{count} × {width} {kind}".rstrip() for (kind, width), count in links.items())
    section = Section(
        "The machine",
        f"{words.count_nodes(found)}; by direction: {widths}. Links are drawn as thick as they are wide.",
        drawing=fitted(svg, width=lay_out(found).width),
        table=words.tabulate_links(found),
    )
    title = f"{machine_title(found)}{but_missing(found)}"
    return render_page(Page(title, " ".join(words.machine_notes(found)), sections=(section,)))
