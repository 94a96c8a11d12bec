"""The Typer application: one entry per command.

Commands are light to import; what a command needs beyond NumPy it imports when it runs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, NamedTuple

import typer

from treefold import __version__
from treefold.cli.averaging import average
from treefold.cli.bench import bench
from treefold.cli.demo.command import demo
from treefold.cli.doctor.command import doctor
from treefold.cli.planning.plan import plan
from treefold.cli.planning.simulate import simulate
from treefold.cli.planning.topology import topology
from treefold.cli.run import run


class Command(NamedTuple):
    """A command: its function, its line among the others, examples to copy, and what Click is told of it."""

    function: Callable[..., None]
    summary: str
    examples: tuple[str, ...]
    settings: dict[str, bool] | None = None


COMMANDS = (
    Command(
        demo,
        "Train a network on logical devices, and check the result.",
        ("treefold demo --devices 3", "treefold demo --ops one-device --report demo.html"),
    ),
    Command(
        run,
        "Run a script once per rank, joined in shared memory.",
        ("treefold run -n 4 train.py --epochs 3", "treefold run -n 2 -m package.module"),
        {"allow_extra_args": True, "allow_interspersed_args": False},  # what follows the script is its own
    ),
    Command(
        bench,
        "Measure all-reduce on host memory.",
        (
            "treefold bench -b 4K -e 256M --against numpy,torch",
            "treefold bench --model resnet50 --op mean --json run.json",
            "treefold bench --hosts -- --rounds 3 --scenes switch",
        ),
    ),
    Command(
        average,
        "Average checkpoints, file by file.",
        (
            "treefold average a.safetensors b.safetensors -o mean.safetensors",
            "treefold average --weights 2,1 a.npz b.npz -o mean.npz",
        ),
    ),
    Command(
        topology,
        "Show this machine, a known one, or a file's.",
        ("treefold topology dgx1_v100 --draw machine.html", "nvidia-smi topo -m | treefold topology -"),
    ),
    Command(
        plan,
        "Find the best all-reduce for a machine.",
        (
            "treefold plan dgx1_v100 --size 256M --draw plan.html",
            "nvidia-smi topo -m | treefold plan - --devices 0-3",
        ),
    ),
    Command(
        simulate,
        "Predict what plans take, by size.",
        (
            "treefold simulate 2x8_a100 --plot sizes.svg",
            "treefold simulate dgx2 --plan plan.json --size 64K,16M,1G",
        ),
    ),
    Command(
        doctor,
        "Say what is here, what is slow or missing, and what to do.",
        ("treefold doctor", "treefold doctor --json > doctor.json"),
    ),
)

app = typer.Typer(
    name="treefold",
    help="Combine one value per device into one value on every device that wants it.",
    context_settings={"help_option_names": ["-h", "--help"]},
    # Frames and colours are for terminals: whoever pipes the help gets text.
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    pretty_exceptions_enable=False,
)


def _add(command: Command) -> None:
    """Register a command; its docstring is its help, each paragraph one line, which the terminal breaks."""
    paragraphs = inspect.cleandoc(command.function.__doc__ or "").split("\n\n")
    app.command(
        command.function.__name__,
        context_settings=command.settings,
        short_help=command.summary,
        help="\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs),
        epilog="\n".join(["\b", "Examples:", *(f"  {example}" for example in command.examples)]),
    )(command.function)


for _command in COMMANDS:
    _add(_command)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"treefold {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options_of_all_commands(
    context: typer.Context,
    *,
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Hold the options that stand before a command's name; without one, show the help as for a wrong call."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
