"""``steps``: how many batches an epoch has that every rank can serve."""

from __future__ import annotations

import contextlib
import operator
from typing import Any

from treefold.errors import KerasError
from treefold.errors.words import short
from treefold.group import Group
from treefold.keras.optimizers import refusing


def steps(group: Group, batches: Any) -> int:
    """Return the least number of batches that every rank has.

    All ranks call this, and leave out what they have more, because every step needs all ranks: by ``dataset.take``, or
    by cutting arrays. ``steps_per_epoch`` alone does not: Keras keeps the rest for the next epoch.

    Args:
        group: the ranks that train together.
        batches: how many batches this rank has in an epoch; or its ``tf.data.Dataset``, ``keras.utils.PyDataset`` or
            PyTorch ``DataLoader``, whose batches must be of one size.

    Returns:
        A number of batches, the same on all ranks.

    Raises:
        KerasError: there is no such number: the length is unknown, infinite or 0, the last batch may be smaller, or
            this is an array of samples.

    """
    with refusing(group):
        count = _count(batches)
        if count < 1:
            raise KerasError(
                f"steps got {short(batches)}. It takes a number of batches, 1 or more, or a dataset that knows how "
                "many it has."
            )
    return int(group.all_reduce(count, "min"))


def _count(batches: Any) -> int:
    with contextlib.suppress(TypeError):
        return operator.index(batches)
    if hasattr(batches, "shape"):
        raise KerasError.array(batches.shape)
    if hasattr(batches, "cardinality"):  # tf.data's
        count = int(batches.cardinality())
        if count < 0:
            raise KerasError.unknown_length()
        if _may_differ(batches.element_spec):
            raise KerasError.unequal_batches(is_loader=False)
        return count
    try:
        count = len(batches)
    except TypeError:
        raise KerasError.unknown_length() from None
    if getattr(batches, "drop_last", None) is False and len(batches.dataset) % (batches.batch_size or 1):
        raise KerasError.unequal_batches(is_loader=True)
    return count


def _may_differ(spec: Any) -> bool:
    """Return whether tf.data does not know that all batches of an element's arrays have one length."""
    import tensorflow as tf  # noqa: PLC0415 - the dataset is its own

    return any(part.shape.rank and part.shape[0] is None for part in tf.nest.flatten(spec) if hasattr(part, "shape"))
