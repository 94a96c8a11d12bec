"""The interface between the probe of links, in ``probe.py``, and a machine, such as CUDA in ``cuda/prober.py``."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Pattern = np.ndarray[Any, np.dtype[np.uint8]]


class Prober(abc.ABC):
    """A machine whose links can be probed."""

    @abc.abstractmethod
    def machine(self) -> str:
        """Return the devices and the driver in one line, for which results hold."""

    @abc.abstractmethod
    def devices(self) -> Sequence[str]:
        """Return the devices whose links are to be proved."""

    @abc.abstractmethod
    def put(self, pattern: Pattern, device: str) -> Any:
        """Return a buffer on a device with these bytes, sent there from the host."""

    @abc.abstractmethod
    def copy(self, source: Any, target: Any) -> None:
        """Copy a buffer over the link that is proved, and wait for the end."""

    @abc.abstractmethod
    def seconds_to_copy(self, source: Any, target: Any) -> float:
        """Copy and return how long it took on the devices' own clock."""

    @abc.abstractmethod
    def get(self, buffer: Any) -> Pattern:
        """Return the bytes of a buffer, sent to the host by the device that it is on."""

    @abc.abstractmethod
    def load(self, pairs: Sequence[tuple[str, str]]) -> Callable[[], None]:
        """Start copies over all these pairs in a loop, and return a function that ends them."""
