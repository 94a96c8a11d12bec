"""The program of a library's process: connects to the benchmark, follows its orders, answers, and ends with it.

``python -m memory_bench.worker LIBRARY ADDRESS RANK RANKS``; RANK is ``-`` if a launcher sets the ranks. The key of the
connection is in the environment.
"""

from __future__ import annotations

import importlib
import os
import sys
from multiprocessing.connection import Client

from treefold.bench.baselines import BASELINES, InProcess
from treefold.errors import PeerError

#: The connection's key, as hexadecimal digits.
KEY = "TREEFOLD_BENCH_KEY"


def main(name: str, address: str, rank_text: str, ranks_text: str) -> None:
    """Answer until the benchmark says stop or ends."""
    module = None if name in BASELINES else importlib.import_module(f"memory_bench.with_{name}")
    rank = module.rank() if module is not None and rank_text == "-" else int(rank_text)
    make = BASELINES[name] if module is None else module.make_baseline
    library = InProcess(name, make, rank=rank, ranks=int(ranks_text))
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
                connection.send(("done", getattr(library, order)(*arguments)))
            except PeerError as error:
                connection.send(("failed", str(error)))
    sys.stdout.flush()
    sys.stderr.flush()
    # Libraries with threads of their own may hang or crash while the interpreter takes itself apart.
    module.finish() if module is not None and hasattr(module, "finish") else os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
