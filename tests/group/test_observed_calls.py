"""Calls of a group in the log and in profilers."""

import contextlib
import logging
import re
import sys
import types

import numpy as np
from rank_processes import World

import treefold

VALUE = np.arange(6, dtype=np.float32)


def calls(me):
    """Return what rank ``me`` logs, and the ranges that a stand-in for JAX's profiler sees.

    PyTorch's own leaves a thread behind, which no rank may.
    """
    lines, marked, logger = [], [], logging.getLogger("treefold")

    def mark(name):
        return contextlib.nullcontext(marked.append(name))

    sys.modules["jax.profiler"] = types.SimpleNamespace(TraceAnnotation=mark)
    handler = logging.Handler()
    handler.emit = lambda record: lines.append((record.levelname, record.getMessage()))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    with treefold.connect(me.ticket, connect_timeout_seconds=60, timeout_seconds=60) as group:
        group.all_reduce(VALUE, "mean")
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)
        with treefold.profile():
            group.all_reduce(VALUE, "mean")
            group.broadcast(VALUE)
            group.all_gather(VALUE)
            group.barrier()
        digest = group.plan(VALUE, "mean").digest[:16]
    return lines, marked, digest


class TestCallsOfAGroup:
    def test_are_logged_and_marked_on_each_rank(self, ranks):
        for rank, done in enumerate(ranks.run(World(calls, 2))):
            lines, marked, digest = done.value
            text = [f"{level} {re.sub('[0-9.]+ us', 'T', line)}" for level, line in lines if "native core" not in line]
            words = f"treefold.all_reduce MEAN, 24 bytes, plan {digest}"
            assert text[:2] == [
                f"INFO rank {rank} of hosts ((0, 1),), guarantee exact",
                "DEBUG treefold.agree MEAN, not planned yet: T",
            ]
            assert text[2].startswith(f"INFO plan {digest}: <Plan: all_reduce by ")
            assert text[3:] == [f"DEBUG {words}: T"]
            assert marked == [
                words,
                "treefold.broadcast from rank 0 of float32 (6,), 24 bytes",
                "treefold.all_gather along axis 0 of 1 leaf, 48 bytes",
                "treefold.barrier",
            ]
