"""The Typer application: one entry per command, imported when it is called.

A command is light to import, and imports everything beyond NumPy when it runs.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Annotated, NamedTuple

import typer

from treefold import __version__


class Command(NamedTuple):
    """A command: its name, its module, its line in the list of commands, examples, and settings for Click."""

    name: str
    module: str
    summary: str
    examples: tuple[str, ...]
    settings: dict[str, bool] | None = None


COMMANDS = (
    Command(
        "demo",
        "treefold.cli.demo",
        "Train a network on several ranks and devices, and check the bits.",
        ("treefold demo --ranks 1,2,3,5,8", "treefold demo --report demo.html"),
    ),
    Command(
        "run",
        "treefold.cli.run",
        "Run a script once per rank, joined in shared memory.",
        ("treefold run -n 4 train.py --epochs 3", "treefold run -n 2 -m package.module"),
        {"allow_extra_args": True, "allow_interspersed_args": False},  # options after the script are its own
    ),
    Command(
        "bench",
        "treefold.cli.bench",
        "Measure all-reduce on host memory.",
        (
            "treefold bench -b 4K -e 256M --against numpy,torch",
            "treefold bench --model resnet50 --op mean --json run.json",
            "treefold bench --hosts -- --rounds 3 --scenes switch",
        ),
    ),
    Command(
        "average",
        "treefold.cli.averaging",
        "Average checkpoints, file by file.",
        (
            "treefold average a.safetensors b.safetensors -o mean.safetensors",
            "treefold average --weights 2,1 a.npz b.npz -o mean.npz",
        ),
    ),
    Command(
        "topology",
        "treefold.cli.planning.topology",
        "Show this machine, a known one, or a file's.",
        ("treefold topology dgx1_v100 --draw machine.html", "nvidia-smi topo -m | treefold topology -"),
    ),
    Command(
        "plan",
        "treefold.cli.planning.plan",
        "Find the best all-reduce for a machine.",
        (
            "treefold plan dgx1_v100 --size 256M --draw plan.html",
            "nvidia-smi topo -m | treefold plan - --devices 0-3",
        ),
    ),
    Command(
        "simulate",
        "treefold.cli.planning.simulate",
        "Predict what plans take, by size.",
        (
            "treefold simulate 2x8_a100 --plot sizes.svg",
            "treefold simulate dgx2 --plan plan.json --size 64K,16M,1G",
        ),
    ),
    Command(
        "doctor",
        "treefold.cli.doctor",
        "Say what is here, what is slow or missing, and what to do.",
        ("treefold doctor", "treefold doctor --json > doctor.json"),
    ),
)


def make_app(first: str | None = None) -> typer.Typer:
    """Return the application with the command that the first argument names, or with all if it names none."""
    app = typer.Typer(
        name="treefold",
        help="Combine one value per device into one value on every device that wants it.",
        context_settings={"help_option_names": ["-h", "--help"]},
        # Frames and colours are for terminals: in a pipe the help is plain text.
        rich_markup_mode="rich" if sys.stdout.isatty() else None,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_options_of_all_commands)
    # Importing all commands takes longer than averaging two small files.
    for command in [command for command in COMMANDS if command.name == first] or COMMANDS:
        _add(app, command)
    return app


def _add(app: typer.Typer, command: Command) -> None:
    """Register a command. Its docstring is its help: each paragraph becomes one line, which the terminal wraps."""
    function: Callable[..., None] = getattr(importlib.import_module(command.module), command.name)
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    app.command(
        command.name,
        context_settings=command.settings,
        short_help=command.summary,
        help="\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs),
        epilog="\n".join(["\b", "Examples:", *(f"  {example}" for example in command.examples)]),
    )(function)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"treefold {__version__}")
        raise typer.Exit


def _options_of_all_commands(
    context: typer.Context,
    *,
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Hold the options that stand before a command's name. Without a command, print the help and exit with 2."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
