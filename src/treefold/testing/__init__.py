"""Tools to test reductions, treefold's own and yours: inputs, oracles, hostile arrays, fake devices, a suite."""

from treefold.errors import ChannelUseError, ConformanceError, FakeOutOfMemoryError, HangError
from treefold.testing.clocks import Clock, RealClock, VirtualClock
from treefold.testing.conformance import CONFORMANCE, Adapter, Case
from treefold.testing.emulation import Emulation, Emulator, emulate
from treefold.testing.fake_channel import FakeChannel, FakeNetwork
from treefold.testing.fake_devices import FakeArray, FakeBackend, RecordingBackend
from treefold.testing.fake_faults import Cut, Fault, Kill, Stop, draw_faults
from treefold.testing.fake_wire import SendReport, Sent
from treefold.testing.hostile import INPUT_LAYOUTS, LAYOUTS, Hostile
from treefold.testing.inputs import mixed_values, owned, owned_sum, special_values
from treefold.testing.oracles import assert_same_bits, fold_arrays, fold_numbers, result_dtype, rounded

__all__ = [
    "CONFORMANCE",
    "INPUT_LAYOUTS",
    "LAYOUTS",
    "Adapter",
    "Case",
    "ChannelUseError",
    "Clock",
    "ConformanceError",
    "Cut",
    "Emulation",
    "Emulator",
    "FakeArray",
    "FakeBackend",
    "FakeChannel",
    "FakeNetwork",
    "FakeOutOfMemoryError",
    "Fault",
    "HangError",
    "Hostile",
    "Kill",
    "RealClock",
    "RecordingBackend",
    "SendReport",
    "Sent",
    "Stop",
    "VirtualClock",
    "assert_same_bits",
    "draw_faults",
    "emulate",
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
