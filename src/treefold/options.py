"""Options of one call, beside the op and the destinations."""

from __future__ import annotations

import dataclasses
import enum
import math
from types import UnionType

from treefold.errors import ArgumentError


class CommunicationImplementation(enum.Enum):
    """The implementation that a call asks for, as in ``tf.distribute.experimental``; names are accepted, too."""

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"

    @classmethod
    def parse(cls, value: object) -> CommunicationImplementation:
        """Return the implementation that ``value`` names.

        Raises:
            ArgumentError: It names none.

        """
        found = value if isinstance(value, cls) else cls._missing_(value)
        if found is None:
            raise ArgumentError.choice(tuple(cls.__members__), implementation=value)
        return found

    @classmethod
    def _missing_(cls, value: object) -> CommunicationImplementation | None:
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None


@dataclasses.dataclass(frozen=True)
class CommunicationOptions:
    """Options of one call, as ``tf.distribute.experimental.CommunicationOptions``.

    A call refuses an option that its plan's executor cannot honour; no option is dropped.

    Args:
        bytes_per_pack: The most bytes in a pack. A value that is larger is a pack of its own: values are never cut. 0:
            the ops object decides.
        timeout_seconds: The most seconds that a collective may take; None for no limit.
        implementation: A ``CommunicationImplementation`` or its name.

    Raises:
        ArgumentError: A field is not of its kind or negative.

    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CommunicationImplementation = CommunicationImplementation.AUTO

    def __post_init__(self) -> None:
        """Check each field once, here, so that no call has to."""
        if not _is_number(self.bytes_per_pack, int) or self.bytes_per_pack < 0:
            raise ArgumentError.option(bytes_per_pack=self.bytes_per_pack)
        seconds = self.timeout_seconds
        if seconds is not None and not (_is_number(seconds, int | float) and 0 < seconds < math.inf):
            raise ArgumentError.option(timeout_seconds=seconds)
        implementation = CommunicationImplementation.parse(self.implementation)
        object.__setattr__(self, "implementation", implementation)


class CollectiveHints(CommunicationOptions):
    """The name that ``CommunicationOptions`` had in TensorFlow 2.2 and 2.3; without ``implementation``.

    Args:
        bytes_per_pack: See ``CommunicationOptions``.
        timeout_seconds: See ``CommunicationOptions``.

    """

    def __init__(self, bytes_per_pack: int = 0, timeout_seconds: float | None = None) -> None:
        """Take the two hints of TensorFlow's older class."""
        super().__init__(bytes_per_pack=bytes_per_pack, timeout_seconds=timeout_seconds)


def _is_number(value: object, kind: type | UnionType) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
