"""Tools to test reductions, treefold's own and yours: inputs, oracles, hostile arrays, fake devices, two suites."""

from treefold.errors import ConformanceError, FakeOutOfMemoryError
from treefold.testing.channels import CHANNEL_CONFORMANCE, ChannelCase
from treefold.testing.conformance import CONFORMANCE, Adapter, Case
from treefold.testing.fake_devices import FakeArray, FakeBackend, RecordingBackend
from treefold.testing.hostile import INPUT_LAYOUTS, LAYOUTS, Hostile
from treefold.testing.inputs import mixed_values, owned, owned_sum, special_values
from treefold.testing.oracles import assert_same_bits, fold_arrays, fold_numbers, result_dtype, rounded

__all__ = [
    "CHANNEL_CONFORMANCE",
    "CONFORMANCE",
    "INPUT_LAYOUTS",
    "LAYOUTS",
    "Adapter",
    "Case",
    "ChannelCase",
    "ConformanceError",
    "FakeArray",
    "FakeBackend",
    "FakeOutOfMemoryError",
    "Hostile",
    "RecordingBackend",
    "assert_same_bits",
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
