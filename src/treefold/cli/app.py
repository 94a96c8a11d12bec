"""The Typer application: one line per command.

Commands are light to import; what a command needs beyond NumPy it imports when it runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from treefold import __version__
from treefold.cli.average.command import average
from treefold.cli.bench import bench
from treefold.cli.demo.command import demo
from treefold.cli.planning.plan import plan
from treefold.cli.planning.simulate import simulate
from treefold.cli.planning.topology import topology

app = typer.Typer(
    name="treefold",
    help="Combine one value per device into one value on every device that wants it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo)
app.command("bench")(bench)
app.command("average")(average)
app.command("topology")(topology)
app.command("plan")(plan)
app.command("simulate")(simulate)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"treefold {__version__}")
        raise typer.Exit


@app.callback()
def _options_of_all_commands(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Hold the options that stand before a command's name."""
