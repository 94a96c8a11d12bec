"""Shared by the planning commands: their options, the choice of a machine, and the files that they write."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from treefold.cli.completion import endings, explained, words
from treefold.cli.gpus import find_gpus
from treefold.cli.needs import check_output, has_module
from treefold.cli.tables import Table
from treefold.devices import device_type
from treefold.errors import CommandError
from treefold.errors.words import listed, short
from treefold.execution.host import describe_machine
from treefold.files import write_atomically
from treefold.topology import Topology, known_names, known_topology, with_nvlinks
from treefold.topology.discover import discover_topology
from treefold.topology.known import LENDERS
from treefold.topology.load import load_topology

WORDS = {
    "dgx1_p100": "NVIDIA DGX-1 with P100: a cube mesh of NVLinks",
    "dgx1_v100": "NVIDIA DGX-1 with V100: a cube mesh of NVLinks, some of them double",
    "p3_8xlarge": "Amazon EC2 p3.8xlarge: V100, NVLinks between all, some of them double",
    "dgx2": "NVIDIA DGX-2: V100 on an NVSwitch",
    "dgx_a100": "NVIDIA DGX A100: A100 on an NVSwitch",
    "dgx_h100": "NVIDIA DGX H100: H100 on an NVSwitch",
    "dgx_b200": "NVIDIA DGX B200: B200 on an NVSwitch",
    "mi250": "AMD: 8 MI250 of two devices each, xGMI links between some",
    "mi300x": "AMD: MI300X, xGMI links between all, as wide as copies reach",
    "mi300x_raw": "AMD: MI300X, xGMI links between all, as wide as the data sheet says",
    "pcie3_8gpu": "two Intel sockets, PCIe 3, no NVLinks",
    "a100_pcie_8gpu": "two AMD sockets, PCIe 4, A100 in pairs with NVLink bridges",
    "ring:8": "so many devices in a ring; ring:8:50 with 50 GB/s a link",
    "line:8": "so many devices in a line; line:8:50 with 50 GB/s a link",
    "mesh:8": "so many devices, each with a link to each; mesh:8:50 with 50 GB/s a link",
    "2x8_a100": "two hosts, each a DGX A100 with a NIC per GPU; any number of hosts",
    "2x8_h100": "two hosts, each a DGX H100 with a NIC per GPU; any number of hosts",
    "4x8_h100": "four such hosts",
    "8x8_h100": "eight such hosts",
    "2x16_mi250": "two hosts of 8 MI250 with NICs; any number of hosts",
}
PICTURES = (".html", ".svg")
_PICTURE_OPTIONS = ("--draw", "--plot")
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")
_NAME = re.compile(r"[\w:.]+")

_OUTPUT = "Output"


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
        autocompletion=words(*LENDERS),
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
WithTable = Annotated[
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


def list_known() -> Table:
    """Return a table of the machines known by name, with their numbers of devices and a description."""
    rows = [[name, str(len(known_topology(name).devices)), WORDS[name]] for name in known_names()]
    return Table(["machine", "devices", "what it is"], rows, words=(0, 2))


def check_outputs(paths: Mapping[str, Path | None]) -> None:
    """Refuse files that could not be written at the end, and pictures of an unknown kind.

    Raises:
        CommandError: naming the option.

    """
    for option, path in paths.items():
        if path is None:
            continue
        if option in _PICTURE_OPTIONS and path.suffix.lower() not in PICTURES:
            raise CommandError(
                f"{option} got {str(path)!r}. It draws {listed(PICTURES, quote=False)}; name the file so."
            )
        check_output(option, path)


def say_written(*paths: Path | None, err: bool) -> None:
    """Print the names of files, which were written before anything is printed; on stderr if stdout is JSON."""
    for path in paths:
        if path is not None:
            typer.echo(f"Written: {path}", err=err)


def write_picture(path: Path, *, svg: str, html: str) -> None:
    """Write a drawing in the format that the file's name asks for."""
    write_atomically(path, html if path.suffix.lower() == ".html" else svg)


def only_one(*given: str | None) -> str | None:
    """Return the machine that an argument or an option names; None if none does.

    Raises:
        CommandError: several do.

    """
    named = [name for name in given if name is not None]
    if len(named) > 1:
        raise CommandError(f"{' and '.join(map(short, named))} are each a machine; give one of them.")
    return named[0] if named else None


def read_machine(given: str | None, devices: str | None = None, nvlinks: str | None = None) -> Topology:
    """Return the machine of this name, or the one of this process, with only the devices that ``--devices`` names.

    A word that names no file and has no slash is a machine's name, so that a misspelt one gets the nearest name as an
    answer. The NVLinks of the known machine ``nvlinks`` are added before devices are left out.

    Raises:
        TopologyError: no such name or device, devices that do not reach each other, or NVLinks that do not fit.
        ParseError: no such file, or one that describes no machine.

    """
    if given is None:
        topology = discover_topology()
    elif given == "-" or Path(given).exists() or not _NAME.fullmatch(given) or Path(given).suffix in {".xml", ".json"}:
        topology = load_topology(given)
    else:
        topology = known_topology(given)
    if nvlinks is not None:
        topology = with_nvlinks(topology, nvlinks)
    if devices is None:
        return topology
    return topology.restricted(_named(devices, topology.devices))


def _named(devices: str, known: Sequence[str]) -> list[str]:
    """Return the names that ``0-3,6`` or ``gpu:0,gpu:1`` stand for; bare numbers have the machine's own kind."""
    kind = device_type(known[0])
    found: list[str] = []
    for word in devices.split(","):
        number = _RANGE.fullmatch(word.strip())
        if number:
            first, last = int(number[1]), int(number[2] or number[1])
            if last < first:
                raise CommandError.devices_range(word)
            found += [f"{kind}:{index}" for index in range(first, last + 1)]
        elif ":" in word:
            found.append(word.strip())
        else:
            raise CommandError.devices_range(word)
    return found


def offer_known(command: str, named: str | None, machine: Topology) -> tuple[str, ...]:
    """Return closing lines for a machine without GPUs: why none is seen, and a known machine to try.

    Returns () if a machine was named, or has GPUs.
    """
    if named is not None or any(device_type(device) != "cpu" for device in machine.devices):
        return ()
    facts = describe_machine()
    gpus = find_gpus()
    seen = "no GPU"
    if gpus is not None:
        seen = f"{gpus.vendor} GPUs that treefold does not see"
        if gpus.vendor == "NVIDIA" and not has_module("pynvml"):
            seen += ' without nvidia-ml-py: pip install "treefold[nvml]"'
    return (
        "",
        f"here: {facts['processor']}, {facts['cores']} cores, {seen}",
        f"try:  treefold {command} dgx1_v100, or another machine of: treefold topology --list",
    )
