"""``treefold run``: one process per rank on this machine, connected, with their output marked."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated

import typer

from treefold.cli.signals import unwound_by_signals
from treefold.errors import CommandError
from treefold.errors.words import short
from treefold.group import Ticket
from treefold.group.bootstrap.memory_limits import usable_cores
from treefold.group.bootstrap.rank_sources import TICKET_VARIABLE
from treefold.group.bootstrap.rendezvous import MOST_RANKS

#: How long ranks may take to end by themselves once one has failed, and to end once they are asked to.
_GRACE_PERIOD_S, _END_S = 2.0, 5.0
_LOOK_S = 0.02
_SIGNALED = 128
#: How an uncaught PeerLostError ends a program, or a command of ours, and the rank that it says is gone.
_LOST = re.compile(rb"\b(?:PeerLostError|treefold): Rank (\d{1,3}) (?:has (?!not)|was interrupted)")
#: Libraries that start a thread per core in every process; ranks share the cores instead.
_THREADS = ("OMP_NUM_THREADS", "TREEFOLD_NUM_THREADS")


def run(
    context: typer.Context,
    *,
    script: Annotated[str, typer.Argument(help="The script that every rank runs, or a module behind -m.")],
    ranks: Annotated[
        int, typer.Option("-n", "--ranks", min=1, max=MOST_RANKS, help="How many processes to start.")
    ] = 2,
    is_module: Annotated[bool, typer.Option("-m", help="The script is a module's name, as for python -m.")] = False,
) -> None:
    """Run a script once per rank: `treefold.connect()` in it joins them in shared memory.

    Options after the script are the script's own. Each line of output is marked with its rank. If a rank fails, it is
    named, the others are ended, and the command ends with its exit code. Ctrl-C reaches all ranks. Ranks share the
    cores: OMP_NUM_THREADS and TREEFOLD_NUM_THREADS are set to their share unless you set them.
    """
    if not is_module and not Path(script).is_file():
        raise CommandError(f"There is no file {short(script)}. Name a script, or a module behind -m.")
    raise typer.Exit(run_ranks([sys.executable, *(["-m"] if is_module else []), script, *context.args], ranks))


def run_ranks(command: Sequence[str], ranks: int, environment: Mapping[str, str] | None = None) -> int:
    """Run a command once per rank, with these variables added to the environment, and return the exit code."""
    tickets = Ticket.for_ranks(ranks)
    share = str(max(1, int(usable_cores() // ranks)))
    variables = {**dict.fromkeys(_THREADS, share), **os.environ, **(environment or {})}
    try:
        with unwound_by_signals():
            return _run_all(command, tickets, variables)
    finally:
        shutil.rmtree(Ticket.read(tickets[0]).folder, ignore_errors=True)


def _run_all(command: Sequence[str], tickets: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start the ranks, pass their output on, and return the exit code."""
    ranks: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    lost: list[int] = []
    try:
        for rank, ticket in enumerate(tickets):
            ranks.append(_start(command, {**environment, TICKET_VARIABLE: ticket}))
            readers += _pass_on(rank, ranks[-1], lost)
        failed = _first_failure(ranks)
        if failed is not None:
            _wait(ranks, _GRACE_PERIOD_S)
        codes = [process.poll() for process in ranks]  # None for those that are ended here, which have not failed
    finally:
        _end(ranks)
        _wait_for(readers)
    if failed is None:
        return 0
    # Ranks that raise because another one has failed may end before it does; they name it.
    ended = dict(enumerate(codes))
    failed = next((rank for rank in lost if ended.get(rank)), failed)
    code = codes[failed] or 0
    typer.echo(f"treefold run: rank {failed} {_end_in_words(code)}", err=True)
    return code if code > 0 else _SIGNALED - code


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # In this process's group, so that a terminal's Ctrl-C reaches them, too.
    return subprocess.Popen(  # noqa: S603 - the user's own script
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _pass_on(rank: int, process: subprocess.Popen[bytes], lost: list[int]) -> list[threading.Thread]:
    """Copy a rank's output to ours, line by line, in the background. Add ranks that its errors name to ``lost``."""
    pairs = ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer))
    readers = [
        threading.Thread(target=_copy, args=(rank, source, target, lost), daemon=True) for source, target in pairs
    ]
    for reader in readers:
        reader.start()
    return readers


_one_at_a_time = threading.Lock()


def _wait_for(readers: Sequence[threading.Thread]) -> None:
    """Wait until all output is passed on, but not for long: a program that a rank left running may hold it open."""
    deadline = time.monotonic() + _END_S
    while any(reader.is_alive() for reader in readers) and time.monotonic() < deadline:
        if _one_at_a_time.locked():  # The reader of our output is slow.
            deadline = time.monotonic() + _END_S
        time.sleep(_LOOK_S)


def _copy(rank: int, source: IO[bytes] | None, target: IO[bytes], lost: list[int]) -> None:
    if source is None:
        return
    for line in source:
        ended = line if line.endswith(b"\n") else line + b"\n"
        named = lost_rank(line)
        if named is not None:
            lost.append(named)
        try:
            with _one_at_a_time:
                target.write(b"[%d] %b" % (rank, ended))
                target.flush()
        except OSError:  # nobody reads on (`| head`), or the disk is full: as if the rank wrote there itself
            source.close()
            return


def lost_rank(line: bytes) -> int | None:
    """Return the rank that an uncaught PeerLostError names in a line of output, or None."""
    found = _LOST.search(line)
    return None if found is None else int(found[1])


def _first_failure(ranks: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait until all ranks have ended well, or one has failed. Return the failed rank, or None."""
    while True:
        codes = [process.poll() for process in ranks]
        # A rank that raises because another one has died ends later than that one, but may be seen in the same look.
        killed = [rank for rank, code in enumerate(codes) if code is not None and code < 0]
        failed = killed or [rank for rank, code in enumerate(codes) if code]
        if failed:
            return failed[0]
        if None not in codes:
            return None
        time.sleep(_LOOK_S)


def _wait(ranks: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(process.poll() is None for process in ranks) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the ranks that still run: by request first, then by force."""
    for process in ranks:
        if process.poll() is None:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # one that is stopped could not obey
    _wait(ranks, _END_S)
    for process in ranks:
        if process.poll() is None:
            process.kill()
        process.wait()


def _end_in_words(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
