"""Tools to test reductions, treefold's own and yours: inputs, oracles, fake devices, a suite for backends.

>>> import treefold
>>> from treefold.testing import assert_same_bits, owned, owned_sum
>>> replicas = [owned(replica, (2, 4)) for replica in range(3)]  # replica r brings 2**r times a pattern
>>> assert_same_bits(treefold.all_reduce(replicas)[0], owned_sum(3, (2, 4)))
"""

from treefold.errors import ConformanceError, FakeOutOfMemoryError
from treefold.testing.conformance import CONFORMANCE, Adapter, Case
from treefold.testing.fake_devices import FakeArray, FakeBackend, RecordingBackend
from treefold.testing.inputs import mixed_values, owned, owned_sum, special_values
from treefold.testing.oracles import assert_same_bits, fold_arrays, fold_numbers, result_dtype, rounded
from treefold.testing.same_training import assert_same_training

__all__ = [
    "CONFORMANCE",
    "Adapter",
    "Case",
    "ConformanceError",
    "FakeArray",
    "FakeBackend",
    "FakeOutOfMemoryError",
    "RecordingBackend",
    "assert_same_bits",
    "assert_same_training",
    "fold_arrays",
    "fold_numbers",
    "mixed_values",
    "owned",
    "owned_sum",
    "result_dtype",
    "rounded",
    "special_values",
]


def __dir__() -> list[str]:
    return __all__
