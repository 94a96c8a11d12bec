"""``MicroBatches.check``: whether a micro-batch has the same bits on every rank, in any order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from treefold.errors import NotReproducibleError
from treefold.group import Group

#: What each rank runs: its numbers of micro-batches, in two orders.
ORDERS = ((0, 1, 0), (1, 0, 0))


@contextmanager
def restored(model: torch.nn.Module) -> Iterator[None]:
    """Restore a model's gradients and buffers afterwards."""
    gradients = [(one, one.grad) for one in model.parameters()]
    buffers = [(one, one.detach().clone()) for one in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for one, contents in buffers:
                one.copy_(contents)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def compare(found: Sequence[tuple[str, Mapping[str, str]]], group: Group | None) -> None:
    """Compare what all ranks have found.

    Args:
        found: What was looked at, and its digests by name; the same thing may come several times.
        group: The ranks; all of them call.

    Raises:
        NotReproducibleError: one thing has two digests, on all ranks.

    """
    text = json.dumps(found).encode()
    texts = [text]
    if group is not None:
        lengths = group.all_gather(np.asarray([len(text)]))
        joined = np.asarray(group.all_gather(np.frombuffer(text, np.uint8)))
        texts = [part.tobytes() for part in np.split(joined, np.cumsum(lengths)[:-1])]
    first: dict[str, tuple[int, Mapping[str, str]]] = {}
    for rank, one in enumerate(texts):
        for what, digests in json.loads(one):
            other, known = first.setdefault(what, (rank, digests))
            where = f"in two runs on rank {rank}" if rank == other else f"on rank {rank} from rank {other}"
            error = NotReproducibleError.between(f"{what} differs {where}", known, digests)
            if error is not None:
                raise error
