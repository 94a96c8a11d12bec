"""Cross-device ops for ``tf.distribute``: change one import, and ``MirroredStrategy`` reduces by treefold's plans.

>>> import tensorflow as tf
>>> from treefold.tensorflow import HierarchicalCopyAllReduce
>>> strategy = tf.distribute.MirroredStrategy(["cpu:0"], cross_device_ops=HierarchicalCopyAllReduce())
>>> isinstance(strategy.extended._cross_device_ops, tf.distribute.CrossDeviceOps)
True

Values on CPU devices are folded in host memory, in one pass over the tensors and without a copy. In a graph, that pass
is an operation of treefold's own. For sparse rows, and shapes that are unknown while tracing, it is a call into Python,
as by ``tf.numpy_function``. Neither has a gradient (``all_reduce`` of the replica context has its own). Graphs for XLA,
for GPUs, and of models that are being saved run the plan as TensorFlow ops.

Ops with a group, ``CrossDeviceOps(treefold.HierarchicalCopyAllReduce(group=group))``, reduce across its processes.
Their traced calls, and those of the group's own methods, are made when the graph runs, in the order of the program.
"""

from treefold.errors import FrameworkError

_OLDEST = (2, 16)

try:
    import tensorflow as tf
except ModuleNotFoundError as error:
    if error.name != "tensorflow":  # it is there, and something that it needs is not
        raise
    raise FrameworkError.missing(__name__, "TensorFlow", "tensorflow", "2.16") from None
if tuple(map(int, tf.__version__.split(".")[:2])) < _OLDEST:
    raise FrameworkError.too_old(__name__, "TensorFlow", tf.__version__, "2.16")

from treefold.tensorflow.ops import (  # noqa: E402 - only where TensorFlow is what they need
    AllReduceCrossDeviceOps,
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)

__all__ = [
    "AllReduceCrossDeviceOps",
    "CrossDeviceOps",
    "HierarchicalCopyAllReduce",
    "NcclAllReduce",
    "ReductionToOneDevice",
]


def __dir__() -> list[str]:
    return __all__
