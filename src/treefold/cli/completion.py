"""What shells complete: the values of options that can be listed. For what begins none of them, shells offer files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePath

from treefold.bench.models import MODELS
from treefold.bench.peers import PEERS
from treefold.bench.work import ACCUMULATIONS
from treefold.cli.planning.known import WORDS
from treefold.cli.planning.outputs import PICTURES
from treefold.dtypes import REDUCIBLE
from treefold.reduce_op import ReduceOp
from treefold.topology.nvlinks import LENDERS

Completer = Callable[[str], list[str]]


def _of(values: Iterable[str]) -> Completer:
    words = tuple(values)
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


op = _of(each.value.lower() for each in ReduceOp)
dtype = _of(REDUCIBLE)
model = _of(MODELS)
accumulate = _of(ACCUMULATIONS)
nvlinks = _of(LENDERS)


def machine(incomplete: str) -> list[tuple[str, str]]:
    """Return the machines known by name that begin so, each with its words."""
    return [(name, words) for name, words in WORDS.items() if name.startswith(incomplete)]


def peers(incomplete: str) -> list[str]:
    """Return the lists of peers of which the last begins so: those that are there, and one more."""
    listed, comma, last = incomplete.rpartition(",")
    there = listed.split(",")
    names = PEERS if comma else ("all", *PEERS)
    return [f"{listed}{comma}{name}" for name in names if name.startswith(last) and name not in there]


def picture(incomplete: str) -> list[str]:
    """Return the names of pictures that a name with a dot can become; before the dot, shells offer folders."""
    path = PurePath(incomplete)
    stem, dot, kind = incomplete.rpartition(".")
    if not dot or not path.name.rpartition(".")[0]:
        return []
    return [stem + each for each in PICTURES if each.startswith(f".{kind}")]
