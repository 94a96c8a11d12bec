"""The ranks of one job, as the benchmark sees them: it asks all at once, over lines that cross no cable of the lab."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: A rank that says nothing for so long is lost.
PATIENCE_S = 180


class TeamError(Exception):
    """A rank does not answer."""


class Team:
    """Listens at ``path`` for the ranks; ``meet`` waits for all of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stack = contextlib.ExitStack()
        self._server = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self._server.settimeout(PATIENCE_S)
        self._server.bind(str(path))
        self._server.listen()
        self._lines: list[Any] = []

    def meet(self, hosts: Sequence[int], addresses: Sequence[Sequence[str]]) -> None:
        """Wait for all ranks, and send them their places: the host of each, and the addresses of each host's NICs."""
        found = {}
        for _ in hosts:
            line, _ = self._server.accept()
            line.settimeout(PATIENCE_S)
            lines = self._stack.enter_context(self._stack.enter_context(line).makefile("rw"))
            found[json.loads(lines.readline())["rank"]] = lines
        self._lines = [found[rank] for rank in sorted(found)]
        self._tell({"hosts": list(hosts), "addresses": [list(nics) for nics in addresses]})

    def ask(self, **words: Any) -> list[dict[str, Any]]:
        """Ask all ranks at once, and return their answers in order.

        Raises:
            TeamError: a rank has ended; what it died of, it has printed.

        """
        self._tell(words)
        answers = [lines.readline() for lines in self._lines]
        if "" in answers:
            message = f"Rank {answers.index('')} of {self.path.stem} ended when it was asked to {words['do']}."
            raise TeamError(message)
        return [json.loads(answer) for answer in answers]

    def close(self) -> None:
        """Let the ranks end."""
        self._stack.close()

    def _tell(self, words: dict[str, Any]) -> None:
        for lines in self._lines:
            lines.write(json.dumps(words) + "\n")
            lines.flush()
