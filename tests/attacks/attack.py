"""The number of cases of an attack, their distribution over processes, and how one of them is run again.

Every case is drawn from its number alone, so that it is the same case on every machine. The variable ``TREEFOLD_CASES``
is a whole number of ten-thousandths of an attack; ``full`` is all of it. The variable ``TREEFOLD_CASE`` is the only
case to run, by number.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

_ALL = 10_000
_ASKED = os.environ.get("TREEFOLD_CASES", "60")
_ONLY = os.environ.get("TREEFOLD_CASE")

IS_FULL = _ASKED == "full"
#: Parts of an attack that run beside one another.
SHARDS = 16 if IS_FULL and _ONLY is None else 1

#: Every wait in a program is bounded too, and shorter; this is for a machine that stands still.
LONGEST_S = 1800

#: Beyond what the process has: the blocks of the files, 64 MiB in all, and what a library takes at its first call.
MOST_BYTES = 512 << 20

in_shards = pytest.mark.parametrize("shard", range(SHARDS))


def cases(full, shard=0):
    """Return the numbers of one shard's cases, of an attack that has ``full`` of them in all."""
    if _ONLY is not None:
        return [int(_ONLY)]
    count = full if IS_FULL else min(max(full * int(_ASKED) // _ALL, 1), full)
    return range(shard, count, SHARDS)


def drawing(number):
    return random.Random(number)  # noqa: S311 - nothing is secret here


@contextlib.contextmanager
def replayable(number):
    """Say which case it was that failed, and how it is run alone."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"This was case {number}: TREEFOLD_CASE={number} runs it alone.")
        raise


def report_of(program, *arguments, cases):
    """Return the output of a program of this folder that runs this many cases, by their numbers, to the last.

    Where a case goes wrong is random, because the clock decides when a signal arrives. The arrays and the call are not.
    """
    first, step = cases[0], cases.step if isinstance(cases, range) else 1
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore::DeprecationWarning", program]
    command += [*arguments, str(len(cases)), str(first), str(step)]
    done = subprocess.run(  # noqa: S603 - our own programs
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent, timeout=LONGEST_S
    )
    assert done.returncode == 0, f"{command} in {Path(__file__).parent}: {done.returncode}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])
