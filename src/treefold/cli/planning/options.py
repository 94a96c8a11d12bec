"""The options that the three planning commands share: spelling and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from treefold.cli.completion import endings, explained, words
from treefold.cli.planning.known import WORDS
from treefold.cli.planning.outputs import PICTURES

_OUTPUT = "Output"
#: The known machines that lend their NVLinks.
_LENDERS = ("dgx1_p100", "p3_8xlarge", "dgx1_v100", "dgx2", "dgx_a100", "dgx_h100", "dgx_b200")

#: What the option and the argument for a machine have in common.
_MACHINE: dict[str, Any] = {
    "metavar": "FILE|NAME|-",
    "help": "A file, a known machine, or - for a pipe; else this machine.",
    "autocompletion": explained(WORDS),
}
Given = Annotated[str | None, typer.Argument(**_MACHINE)]
Machine = Annotated[str | None, typer.Option("--topology", "-t", **_MACHINE | {"help": "The same, as an option."})]
Devices = Annotated[
    str | None, typer.Option(metavar="DEVICES", help="Those that take part: 0-3,6 or gpu:0,gpu:1; all if not given.")
]
Nvlinks = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Add the NVLinks of a known machine, such as dgx_h100, to a file without any.",
        autocompletion=words(*_LENDERS),
    ),
]
Packs = Annotated[
    int | None, typer.Option(help="So many packs of equal size, instead of as many as the optimum takes.")
]
Sizes = Annotated[
    str | None,
    typer.Option(
        "--size", "-s", metavar="SIZES", help="Bytes per device to predict for: 64K,16M,1G; if not given, some to 1G."
    ),
]
Table = Annotated[
    bool, typer.Option("--table", help="Also say which method serves which size, found by pricing all (takes seconds).")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of words.", rich_help_panel=_OUTPUT)]
Draw = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Draw it: .html or .svg.",
        rich_help_panel=_OUTPUT,
        autocompletion=endings(*PICTURES),
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(metavar="FILE.json", help="Write the predicted timeline for Perfetto.", rich_help_panel=_OUTPUT),
]
Dot = Annotated[
    Path | None, typer.Option(metavar="FILE.dot", help="Write the machine for Graphviz.", rich_help_panel=_OUTPUT)
]
Save = Annotated[
    Path | None,
    typer.Option(metavar="FILE.json", help="Write the plan itself, which simulate reads.", rich_help_panel=_OUTPUT),
]
