"""The program of a peer's process: connects to the benchmark, does what it is told, answers, ends with it.

``python -m treefold.bench.peers.worker PEER ADDRESS RANK RANKS``; RANK is ``-`` where a launcher gives the ranks. The
key of the connection comes in the environment.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Client
from typing import Any

from treefold.bench.contents import count_wrong
from treefold.bench.peers.interface import Call, Peer
from treefold.bench.work import Work

#: The connection's key, as hexadecimal digits.
KEY = "TREEFOLD_BENCH_KEY"


class _Worker:
    def __init__(self, module: Any, rank: int, ranks: int) -> None:
        self._module, self._rank, self._ranks = module, rank, ranks
        self._peer: Peer
        self._forms: Mapping[str, Call] = {}
        self._loaded: tuple[str, bool] | None = None

    def prepare(self, work: Work) -> list[str]:
        self._loaded = None
        self._peer = self._module.make_peer(work, self._rank)
        self._load("", is_zero=False)
        self._forms = self._peer.forms()
        return list(self._forms)

    def count_wrong(self, form: str) -> int:
        self._load("", is_zero=False)
        self._peer.start(form)
        self._peer.barrier()
        columns = self._peer.read(self._forms[form]())
        self._loaded = None
        return sum(count_wrong(self._peer.work, t, array) for t, column in enumerate(columns) for array in column)

    def time(self, form: str, calls: int) -> list[float]:
        # In place every call changes its inputs, except zeros: one load then serves all calls, and no number overflows.
        is_zero = self._peer.work.placement == "in-place"
        self._load(form if not is_zero else "", is_zero=is_zero)
        self._peer.start(form)
        call, seconds = self._forms[form], []
        for _ in range(calls):
            if self._ranks > 1:
                self._peer.barrier()
            begin = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begin)
        return seconds

    def drop(self) -> None:
        del self._peer
        self._forms, self._loaded = {}, None
        gc.collect()  # compiled functions and what they captured refer to each other

    def _load(self, owner: str, *, is_zero: bool) -> None:
        if self._loaded != (owner, is_zero):
            self._peer.load(is_zero=is_zero)
            self._loaded = (owner, is_zero)


def main(peer: str, address: str, rank_text: str, ranks_text: str) -> None:
    """Answer until the benchmark says stop or is gone."""
    module = importlib.import_module(f"treefold.bench.peers.with_{peer}")
    rank, ranks = module.rank() if rank_text == "-" else int(rank_text), int(ranks_text)
    worker = _Worker(module, rank, ranks)
    host, _, port = address.rpartition(":")
    with Client((host, int(port)), authkey=bytes.fromhex(os.environ[KEY])) as connection:
        connection.send(("ready", rank))
        while True:
            try:
                order, *arguments = connection.recv()
            except EOFError:
                break
            if order == "stop":
                break
            try:
                connection.send(("done", getattr(worker, order)(*arguments)))
            except Exception as error:  # noqa: BLE001 - whatever a library raises is the answer
                sentence = str(error).strip() or "no reason given"
                connection.send(("failed", f"{type(error).__name__}: {sentence.splitlines()[0]}"[:200]))
    sys.stdout.flush()
    sys.stderr.flush()
    # Libraries with threads of their own may hang or crash while the interpreter takes itself apart.
    module.finish() if hasattr(module, "finish") else os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
