"""The two halves of ``MicroBatches.check``: restore a model after test runs, and compare the digests of all ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from treefold.errors import NotReproducibleError
from treefold.group import Group

#: The micro-batches that a rank runs, in order: even ranks use the first entry, odd ranks the second.
ORDERS = ((0, 1, 0), (1, 0, 0))


@contextmanager
def restored(model: torch.nn.Module) -> Iterator[None]:
    """Restore a model's gradients and buffers when the context ends.

    Gradients are kept by reference: in the context, they must be replaced, not changed in place.
    """
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
    """Check that each subject has the same digests in all its runs, on all ranks.

    Args:
        found: This rank's runs: a subject, such as "Micro-batch 0", and its digests by name. Subjects may repeat.
        group: The ranks; all of them call. None: this process alone.

    Raises:
        NotReproducibleError: A subject has two different digests. All ranks raise it.

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
