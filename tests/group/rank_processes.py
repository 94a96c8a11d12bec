"""Ranks as real processes: forked by a process of their own, limited in time, and examined after they end.

The parent of the ranks (``rank_parent.py``) has NumPy and treefold imported and no thread. A rank therefore takes
milliseconds to start, and nothing that the test process has loaded is in it. Bodies of ranks are functions of a test
module, found by its file and their name. They take a ``Rank`` and plain keyword arguments, and their results are
pickled.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rank_parent
from programs import Programs

from treefold.errors import TreefoldError


@dataclass(frozen=True)
class World:
    """Ranks to start together: ``size`` times ``body(rank, **arguments)``, in ``seconds`` at most.

    ``timeout_seconds``: what ``connect`` gets; None: the body connects by itself. ``may_leave``: kinds of things that
    may be left behind, because a rank is killed where it owns them.
    """

    body: Callable[..., Any]
    size: int
    arguments: dict[str, Any] = field(default_factory=dict)
    seconds: float = 60.0
    timeout_seconds: float | None = 60.0
    may_leave: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """The end of a rank: ``value`` or ``error`` (class and sentence), or the ``signal`` or ``code`` of its process.

    Attributes:
        seconds_after: Seconds from the fault, if there was one, to the end of its call.
        left: Anything that it has left behind.
        has_hung: True if it was killed at the end of the time.
        stack: The stack of a rank that has hung.

    """

    rank: int
    value: Any = None
    error: tuple[str, str] | None = None
    signal: int = 0
    code: int = 0
    seconds_after: float | None = None
    left: tuple[str, ...] = ()
    has_hung: bool = False
    stack: str = ""


class RankProcesses:
    """The process that the ranks are forked from, as the tests see it."""

    def __init__(self, environment: dict[str, str] | None = None, programs: Programs | None = None) -> None:
        """``programs``: what starts the parent, if its ranks use frameworks."""
        self._temp = tempfile.mkdtemp(prefix="ranks-")
        Path(self._temp).chmod(0o1777)  # some ranks become another user
        ours, theirs = socket.socketpair()
        with theirs:
            environment = {**os.environ, "TMPDIR": self._temp, **(environment or {})}
            if programs is None:
                command = [sys.executable, rank_parent.__file__, str(theirs.fileno())]
                self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
            else:
                self._process = programs.start([rank_parent.__file__, theirs], env=environment)
        self._connection = ours

    def run(self, world: World) -> list[Ended]:
        """Run one world; return how each rank ended. Hangs and leftovers fail the test."""
        return self.run_all([world])[0]

    def run_all(self, worlds: Sequence[World], at_once: int = 1) -> list[list[Ended]]:
        request = [
            (
                (world.body.__code__.co_filename, world.body.__name__, world.size, world.arguments),
                (world.seconds, world.timeout_seconds, world.may_leave),
            )
            for world in worlds
        ]
        rank_parent.send(self._connection, (request, at_once))
        answer = rank_parent.receive(self._connection)
        assert isinstance(answer, list), answer
        ended = [[Ended(**one) for one in ranks] for ranks in answer]
        for world, ranks in zip(worlds, ended, strict=True):
            what = f"{world.body.__name__} of {world.size} with {world.arguments}"
            hung = [f"rank {one.rank}\n{one.stack}" for one in ranks if one.has_hung]
            assert not hung, f"{what}: after {world.seconds:g} s these ranks had not ended: {' '.join(hung)}"
            left = {one.rank: one.left for one in ranks if one.left}
            assert not left, f"{what}: left behind: {left}"
        return ended

    def close(self) -> None:
        self._connection.close()
        self._process.wait(20)
        shutil.rmtree(self._temp, ignore_errors=True)


def told(action: Callable[..., Any], *arguments: Any, also: tuple[type[Exception], ...] = (), **options: Any) -> Any:
    """Return "done", or the class and the sentence of treefold's error that the action raises, or its interrupt.

    ``also``: other errors that are told.
    """
    try:
        action(*arguments, **options)
    except (TreefoldError, *also) as error:
        return type(error).__name__, str(error)
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    return "done"
