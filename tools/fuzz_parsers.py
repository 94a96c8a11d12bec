"""Fuzz the topology parsers, guided by coverage, up to the first text that breaks one.

A parser may return a machine, or raise one of treefold's errors. This is not part of the tests: atheris has wheels for
few Pythons. ``pip install atheris``, then ``python tools/fuzz_parsers.py CORPUS -max_total_time=300`` (libFuzzer's
options). The first run fills the folder CORPUS with the machines of the tests.
"""

import importlib
import json
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["treefold.topology"]):
    from treefold.topology.parsers import parse_topology

from treefold.errors import TreefoldError

MACHINES = Path(__file__).parents[1] / "tests" / "topology"
LONGEST_ERROR = 2000


def fuzz(data: bytes) -> None:
    """Parse one text: a machine must survive writing and reading, and an error must be short and one of treefold's."""
    text = data.decode("utf-8", errors="replace")
    try:
        topology = parse_topology(text)
    except TreefoldError as error:
        if len(str(error)) > LONGEST_ERROR or not str(error).isprintable():
            raise AssertionError(str(error)) from error
        return
    again = parse_topology(json.dumps(topology.to_json()))
    if again.capacities != topology.capacities:
        raise AssertionError(text)


def main(arguments: list[str]) -> None:
    """Fill an empty corpus, and fuzz."""
    folders = [Path(argument) for argument in arguments[1:] if not argument.startswith("-")]
    if folders and not any(folders[0].glob("*")):
        folders[0].mkdir(parents=True, exist_ok=True)
        sys.path.insert(0, str(MACHINES))
        for name, text in importlib.import_module("pasted_machines").ALL.items():
            (folders[0] / name).write_text(text, encoding="utf-8")
    atheris.Setup(arguments, fuzz)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
