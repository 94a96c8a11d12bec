"""One rank of a job: serves the benchmark's requests over a Unix socket, which crosses no cable of the lab.

``python worker.py SOCKET LAUNCHER``. Requests and answers are lines of JSON; the program ends when the socket closes.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

for room in (Path(__file__).parents[1], Path(__file__).parents[2] / "tools"):
    sys.path.append(str(room))

from hosts_bench.baselines import BASELINES, AllReduce, Rank  # noqa: E402 - where it is was said above
from treefold.errors import TreefoldError  # noqa: E402 - as above

#: By which variable a rank knows its number.
_NUMBER = {"variables": "RANK", "mpiexec": "PMI_RANK"}
_PERIOD = 251  # a prime: a shifted part shows


class Worker:
    """The state of a rank between requests: the baselines that it has set up, and the array of the next call."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._baselines: dict[str, AllReduce] = {}
        self._all_reduce: AllReduce | None = None
        self._array = np.zeros(0, np.float32)

    def prepare(self, *, baseline: str, nbytes: int, shares: list[int], rates: list[float]) -> dict[str, Any]:
        """Set a baseline up, reduce once and count the wrong elements, or return why it cannot."""
        self._rank.shares, self._rank.rates = tuple(shares), tuple(rates)
        if baseline not in self._baselines:
            try:
                self._baselines[baseline] = BASELINES[baseline].make(self._rank)
            except TreefoldError as error:
                return {"skipped": str(error)}
        self._all_reduce = self._baselines[baseline]
        pattern = np.arange(nbytes // 4, dtype=np.float32) % _PERIOD
        result = self._all_reduce(pattern * np.float32(2**self._rank.rank))
        ranks = len(self._rank.hosts)
        wrong = 0 if result is None else int(np.count_nonzero(result != pattern * np.float32(2**ranks - 1)))
        self._array = np.zeros(nbytes // 4, np.float32)  # the one value that sums in place leave alone
        return {"wrong": wrong}

    def run(self, *, calls: int) -> dict[str, Any]:
        """Reduce, and return the start and end by the clock that all hosts of a lab share."""
        assert self._all_reduce is not None, "a baseline is prepared first"  # noqa: S101 - our own order
        begin = time.monotonic()
        for _ in range(calls):
            self._all_reduce(self._array)
        return {"begin": begin, "end": time.monotonic()}


def main(path: str, launcher: str) -> None:
    """Serve until the benchmark closes the line."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(path)
    number = int(os.environ[_NUMBER[launcher]])
    with line, line.makefile("rw") as lines:
        _say(lines, {"rank": number})
        given = json.loads(lines.readline())
        worker = Worker(Rank(number, tuple(given["hosts"]), tuple(map(tuple, given["addresses"]))))
        for request in lines:
            words = json.loads(request)
            _say(lines, getattr(worker, words.pop("do"))(**words))


def _say(lines: Any, words: dict[str, Any]) -> None:
    lines.write(json.dumps(words) + "\n")
    lines.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
