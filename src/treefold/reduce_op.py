"""The five reduce ops, which combine one value per replica into one value."""

from __future__ import annotations

import enum
import re
from typing import Literal

from treefold.errors import ArgumentError
from treefold.errors.words import listed, short

_OTHER_NAMES = {"AVG": "MEAN", "AVERAGE": "MEAN", "PROD": "PRODUCT"}
#: Matches every spelling of a device, and the name of no reduce op.
_DEVICE = re.compile(r"[:/]|^(cpu|cuda|gpu)$", re.IGNORECASE)

#: The names of the ops, for type checkers; functions take them in any case.
ReduceOpName = Literal["sum", "mean", "avg", "average", "min", "max", "product", "prod"]


class ReduceOp(enum.Enum):
    """How the contributions of the replicas are combined, element by element.

    Every method that takes a ``ReduceOp`` also takes its name in any case; ``"avg"``, ``"average"`` and ``"prod"``,
    the words of NCCL, Horovod and MPI, name MEAN and PRODUCT.

    >>> ReduceOp("mean")
    <ReduceOp.MEAN: 'MEAN'>
    """

    SUM = "SUM"
    MEAN = "MEAN"
    MIN = "MIN"
    MAX = "MAX"
    PRODUCT = "PRODUCT"

    @classmethod
    def _missing_(cls, value: object) -> ReduceOp | None:
        if not isinstance(value, str):
            return None
        name = value.upper()
        return cls.__members__.get(_OTHER_NAMES.get(name, name))

    @classmethod
    def parse(cls, value: object) -> ReduceOp:
        """Return the op that ``value`` names: a ``ReduceOp``, its name, or another library's enum of the same name.

        Raises:
            ArgumentError: ``value`` names none of the five. If it names a device, the sentence shows the argument for
                it.

        """
        if isinstance(value, cls):
            return value
        # In tf.distribute.ReduceOp and enums like it, a member's value is the same word.
        word = value.value if isinstance(value, enum.Enum) else value
        found = cls._missing_(word)
        if found is None and isinstance(word, str) and _DEVICE.search(word):
            raise ArgumentError(
                f"{short(word)} names a device, and a reduce op is meant. Write treefold.reduce(values, 'sum', "
                f"to={short(word)}), or ops.reduce('sum', value, {short(word)})."
            )
        if found is None:
            raise ArgumentError(
                f"The reduce op is {short(value)}. It takes {listed(tuple(cls.__members__))}, or a ReduceOp."
            )
        return found


#: The type of every ``op`` argument: a ``ReduceOp``, or its name. A type checker accepts names in lower case only.
ReduceOpLike = ReduceOp | ReduceOpName
