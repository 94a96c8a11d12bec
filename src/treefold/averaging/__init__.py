"""Averages of checkpoints and of models in memory: exact, rounded once, and in constant memory for files.

>>> import numpy as np
>>> from treefold.averaging import average
>>> average([{"w": np.float32([1, 2])}, {"w": np.float32([3, 6])}], weights=[3, 1])
{'w': array([1.5, 3. ], dtype=float32)}

``average_checkpoints`` is the command ``treefold average`` as a function. ``average`` takes pytrees of arrays.
"""

import importlib
from typing import TYPE_CHECKING, Any

from treefold.errors import UnknownNameError

if TYPE_CHECKING:
    from treefold.averaging.run import Summary, average_checkpoints
    from treefold.averaging.trees import average

# Imported lazily: files need a package that arrays in memory do not.
_LATER = {
    "Summary": "treefold.averaging.run",
    "average": "treefold.averaging.trees",
    "average_checkpoints": "treefold.averaging.run",
}

__all__ = ["Summary", "average", "average_checkpoints"]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise UnknownNameError.of_package(name, __all__)
    value = getattr(importlib.import_module(_LATER[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
