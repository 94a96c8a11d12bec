"""``assert_same_training``: a training has the same bits on every number of ranks."""

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

#: What a training yields after each step: what it holds, by name, as digests, text or numbers.
Digests = Mapping[str, object]


def assert_same_training(
    train: Callable[[], Iterable[Digests]], ranks: Sequence[int] = (1, 2, 3), *, timeout_seconds: float = 600.0
) -> None:
    """Run a training on several numbers of ranks of this host, and check that it has the same bits on all.

    Args:
        train: A function of a module that can be imported, without arguments. It runs in every rank's process, where
            the variables of ``torchrun`` are set: ``treefold.connect()`` finds the ranks, and so does
            ``torch.distributed.init_process_group``. It yields something after every step, on all ranks, such as
            ``run.digests(optimizer)`` of ``treefold.torch.MicroBatches``.
        ranks: The numbers of ranks, 1 or more each.
        timeout_seconds: How long one number of ranks may take.

    Raises:
        ArgumentError: Numbers of ranks that are none.
        NotReproducibleError: A difference, naming the first step and thing; or a rank that raised, died, or took too
            long. It is an ``AssertionError``.

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
    for step, (one, other) in enumerate(zip(known, found, strict=False)):
        error = NotReproducibleError.between(f"{what} at step {step}", one, other)
        if error is not None:
            raise error
    if len(known) != len(found):
        raise NotReproducibleError(f"{what}: {len(found)} steps in place of {len(known)}. Yield once after every step.")


def _run(train: Callable[[], Iterable[Digests]], size: int, timeout_seconds: float) -> list[list[Digests]]:
    """Return what each rank has yielded.

    Raises:
        NotReproducibleError: a rank has not come to its end.

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
    try:
        answers.send([dict(one) for one in train()])
    except BaseException:  # noqa: BLE001 - the parent raises it
        answers.send(traceback.format_exc())
