"""``assert_same_training``: check that a training has the same bits on every number of ranks."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from unittest import mock

from treefold.errors import ArgumentError, NotReproducibleError
from treefold.errors.words import counted, short

#: A training yields these after each step: digests, text or numbers, by name.
Digests = Mapping[str, object]


def assert_same_training(
    train: Callable[[], Iterable[Digests]], ranks: Sequence[int] = (1, 2, 3), *, timeout_seconds: float = 600.0
) -> None:
    """Run a training on several numbers of ranks of this host, and check that it has the same bits on all.

    Args:
        train: A function without arguments, of a module that can be imported. It runs in every rank's process, where
            the variables of ``torchrun`` are set, so that ``treefold.connect()`` and
            ``torch.distributed.init_process_group`` find the ranks. After every step it yields digests by name, on all
            ranks, such as ``run.digests(optimizer)`` of ``treefold.torch.MicroBatches``.
        ranks: The numbers of ranks, 1 or more each.
        timeout_seconds: The longest wait until another rank ends, in seconds. It starts anew whenever one has ended.

    Raises:
        ArgumentError: ``ranks`` is empty, or has something else than whole numbers of 1 or more.
        NotReproducibleError: Two ranks, or two numbers of ranks, differ: the error names the first step and the first
            difference. Or a rank raised, died, or took too long. It is an ``AssertionError``, too.

    """
    if not ranks or any(type(size) is not int or size < 1 for size in ranks):
        raise ArgumentError(
            f"assert_same_training got ranks={short(ranks)}. It takes whole numbers of 1 or more, such as (1, 2, 3)."
        )
    first: list[Digests] | None = None
    for size in ranks:
        steps, *others = _run(train, size, timeout_seconds)
        for rank, other in enumerate(others, 1):
            _compare(f"Rank {rank} of {size} differs from rank 0", steps, other)
        if first is None:
            first = steps
        _compare(f"{counted(size, 'rank')} differ from {ranks[0]}", first, steps)


def _compare(what: str, known: Sequence[Digests], found: Sequence[Digests]) -> None:
    """Raise an error, which begins with ``what``, if two trainings differ in a step or in their number of steps."""
    for step, (one, other) in enumerate(zip(known, found, strict=False)):
        error = NotReproducibleError.between(f"{what} at step {step}", one, other)
        if error is not None:
            raise error
    if len(known) != len(found):
        raise NotReproducibleError(f"{what}: {len(found)} steps in place of {len(known)}. Yield once after every step.")


def _run(train: Callable[[], Iterable[Digests]], size: int, timeout_seconds: float) -> list[list[Digests]]:
    """Run a training in new processes, one for each rank, and return the digests of all steps of each rank.

    Raises:
        NotReproducibleError: A rank raised, died, or took too long.

    """
    context = multiprocessing.get_context("spawn")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    common |= {"LOCAL_WORLD_SIZE": str(size), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    pipes, processes = [], []
    try:
        for rank in range(size):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(train, theirs), daemon=True)
            with mock.patch.dict(os.environ, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}):
                process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        return _answers(pipes, timeout_seconds)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _answers(pipes: Sequence[Connection], timeout_seconds: float) -> list[list[Digests]]:
    """Return the digests that each rank sends when it ends; an answer of text is an error's traceback."""
    answers: dict[int, list[Digests]] = {}
    while len(answers) < len(pipes):
        ready = wait([pipe for rank, pipe in enumerate(pipes) if rank not in answers], timeout_seconds)
        if not ready:
            missing = [rank for rank in range(len(pipes)) if rank not in answers]
            raise NotReproducibleError(
                f"Rank {missing[0]} of {len(pipes)} has not ended in {timeout_seconds:g} s. Give it longer by "
                "timeout_seconds=, or find out what it waits for."
            )
        for rank, pipe in enumerate(pipes):
            if pipe in ready:
                try:
                    answer = pipe.recv()
                except EOFError:
                    answer = "it died without an error"
                if isinstance(answer, str):
                    raise NotReproducibleError(f"Rank {rank} of {len(pipes)} raised:\n{answer}")
                answers[rank] = answer
    return [answers[rank] for rank in range(len(pipes))]


def _rank(train: Callable[[], Iterable[Digests]], answers: Connection) -> None:
    """Run the training in a rank's process, and send its digests, or the traceback of its error, to the parent."""
    try:
        answers.send([dict(one) for one in train()])
    except BaseException:  # noqa: BLE001 - the parent raises it
        answers.send(traceback.format_exc())
