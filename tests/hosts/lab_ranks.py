"""The ranks of one job on the hosts of a lab, as a test talks to them."""

import contextlib
import json
import select
import subprocess
import sys
from pathlib import Path

from lab import launch

SCRIPT = str(Path(__file__).with_name("lab_rank.py"))
PATIENCE_S = 120


class Ranks:
    """Ranks that make calls when they are told; a context manager that leaves none running."""

    def __init__(self, lab, size, *, store_outside=True, environment=None):
        """Start one on each host. ``store_outside``: no rank holds PyTorch's store."""
        self.all = tuple(range(size))
        self._ends = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            if store_outside:
                stack.enter_context(launch.outside_store(lab))
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            command = [sys.executable, SCRIPT]
            told = {
                "TORCH_CPP_LOG_LEVEL": "FATAL",
                **(environment or {}),
            }  # it prints C++ stacks of each lost connection
            options = {"store_outside": store_outside, "environment": told, **pipes}
            self.job = stack.enter_context(launch.start(lab, command, self.all, **options))
            self._ends = stack.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._ends.close()

    def tell(self, call, ranks=None, **options):
        """Let ranks, by default all, begin a call."""
        for rank in self.all if ranks is None else ranks:
            pipe = self.job.processes[rank].stdin
            pipe.write(json.dumps([call, options]).encode() + b"\n")
            pipe.flush()

    def hear(self, ranks=None):
        """Return what became of the call, rank by rank."""
        told = {}
        for rank in self.all if ranks is None else ranks:
            pipe = self.job.processes[rank].stdout
            assert select.select([pipe], [], [], PATIENCE_S)[0], f"rank {rank} hangs; others said {told}"
            told[rank] = json.loads(pipe.readline() or '"has ended"')
        return told

    def make(self, call, ranks=None, **options):
        self.tell(call, ranks, **options)
        return self.hear(ranks)
