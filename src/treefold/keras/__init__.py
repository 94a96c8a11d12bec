"""Keras on many processes: gradients, metrics and decisions are those of all ranks of a group.

>>> import keras
>>> from treefold.keras import distribute
>>> import treefold
>>> ticket = treefold.Ticket.for_ranks(1)[0]
>>> with treefold.connect(treefold.Ticket.read(ticket)) as group:
...     optimizer = distribute(keras.optimizers.SGD(0.5), group)
>>> keras.optimizers.serialize(optimizer)["class_name"]
'SGD'

Keras may run on its TensorFlow, JAX or PyTorch backend, with arrays in host memory.
"""

from treefold.errors import FrameworkError

_OLDEST = (3, 5)

try:
    import keras
except ModuleNotFoundError as error:
    if error.name != "keras":  # it is there, and something that it needs is not
        raise
    raise FrameworkError.missing(__name__, "Keras", "keras", "3.5") from None
if tuple(map(int, keras.__version__.split(".")[:2])) < _OLDEST:
    raise FrameworkError.too_old(__name__, "Keras", keras.__version__, "3.5")

from treefold.keras.optimizers import distribute  # noqa: E402 - only where Keras is what they need
from treefold.keras.training import callbacks, steps  # noqa: E402

__all__ = ["callbacks", "distribute", "steps"]


def __dir__() -> list[str]:
    return __all__
