"""The options of ``treefold bench``: spelling and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from treefold.cli.completion import lists, words

_OUTPUT = "Output"
_WHERE = "Where results go (one of these)"
_BASELINES = ("numpy", "torch")
_DTYPES = (
    *("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "complex64", "complex128"),
)
_MODELS = ("resnet50", "vgg16", "bert-base", "bert-large", "gpt2", "vit-b-16")

Begin = Annotated[str, typer.Option("-b", "--begin", metavar="SIZE", help="First size: bytes per replica.")]
End = Annotated[str, typer.Option("-e", "--end", metavar="SIZE", help="Last size.")]
Factor = Annotated[int, typer.Option("-f", "--factor", help="From one size to the next.")]
Iterations = Annotated[int, typer.Option("-n", "--iterations", help="Rounds that are timed.")]
Warmup = Annotated[int, typer.Option("-w", "--warmup", help="Rounds before them that are not.")]
Op = Annotated[
    str,
    typer.Option(help="sum, mean, min, max or product.", autocompletion=words("sum", "mean", "min", "max", "product")),
]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, int8, complex64 …", autocompletion=words(*_DTYPES))]
Devices = Annotated[int, typer.Option(help="Replicas.")]
Model = Annotated[
    str | None,
    typer.Option(
        help="Gradients of a model instead of sizes: resnet50, bert-base, gpt2, vgg16 …",
        autocompletion=words(*_MODELS),
    ),
]
Accumulate = Annotated[str, typer.Option(help="exact or native.", autocompletion=words("exact", "native"))]
Threads = Annotated[int | None, typer.Option(help="Threads of one call; default: as treefold has them.")]
Against = Annotated[
    str,
    typer.Option(
        metavar="LIBRARIES",
        help=f"all, or some of {','.join(_BASELINES)}: run them on the same work.",
        autocompletion=lists(*_BASELINES),
    ),
]

Ranks = Annotated[
    int | None,
    typer.Option(min=2, help="Measure between so many processes instead, float32; --against gloo."),
]
Hosts = Annotated[
    bool,
    typer.Option("--hosts", help="Measure between emulated hosts instead: in a clone, on Linux, as root."),
]
OfHosts = Annotated[
    list[str] | None, typer.Argument(metavar="WORDS", help="Behind --, the options of --hosts; -- --help lists them.")
]
InPlace = Annotated[
    bool, typer.Option("--in-place", help="Into the contributions (the default).", rich_help_panel=_WHERE)
]
OutOfPlace = Annotated[bool, typer.Option("--out-of-place", help="Into given arrays.", rich_help_panel=_WHERE)]
New = Annotated[bool, typer.Option("--new", help="Into new arrays.", rich_help_panel=_WHERE)]
Shared = Annotated[bool, typer.Option("--shared", help="Into one new array for all.", rich_help_panel=_WHERE)]

Json = Annotated[Path | None, typer.Option(help="Write the run as JSON.", rich_help_panel=_OUTPUT)]
Csv = Annotated[Path | None, typer.Option(help="Write the rows as CSV.", rich_help_panel=_OUTPUT)]
