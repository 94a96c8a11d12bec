import ml_dtypes
import numpy as np
import pytest

from treefold.backends import ArrayBackend
from treefold.backends.numpy import NumpyBackend
from treefold.dtypes import REDUCIBLE
from treefold.testing import CONFORMANCE, Adapter, ConformanceError, FakeBackend

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)  # importing ml_dtypes is what makes the name known

FEW = ("bfloat16", "int8", "float64", "int64", "complex64")


def adapter_of(kind):
    """Return the adapter of a backend by the name it has in this file."""
    if kind == "numpy":
        devices = tuple(f"cpu:{index}" for index in range(8))
        return Adapter(NumpyBackend(), devices, lambda array, _: array.copy(), np.asarray, REDUCIBLE)
    fake = FakeBackend(3 if kind == "fewer devices" else 8, is_mutable=kind != "immutable")
    dtypes = FEW if kind == "fake" else FEW[:2]
    return Adapter(fake, fake.devices, fake.array, lambda array: array.data, dtypes)


class TestConformance:
    @pytest.mark.parametrize("kind", ["numpy", "fake", "fewer devices", "immutable"])
    @pytest.mark.parametrize("case", CONFORMANCE, ids=lambda case: case.name)
    def test_holds(self, case, kind):
        assert case.run(adapter_of(kind)) is None

    def test_covers_every_primitive(self):
        called = set()

        class Watched(FakeBackend):
            """Notes what is asked of it."""

            def __getattribute__(self, name):
                called.add(name)
                return super().__getattribute__(name)

        fake = Watched(2)
        run_all(Adapter(fake, fake.devices, fake.array, lambda array: array.data))
        interface = ArrayBackend.__abstractmethods__
        assert interface - called == {"from_host"}  # which is for host memory only


class OwnsAll(FakeBackend):
    def owns(self, value):
        """Own whatever it is."""
        return value is not self


class Aliases(FakeBackend):
    def copy_to(self, array, device):
        """Copy only between devices."""
        return self.beside(array, array.data) if device == array.device else super().copy_to(array, device)


class LosesTheLast(FakeBackend):
    def combine(self, arrays, fold, **kinds):
        """Fold all but the last."""
        return super().combine(arrays[:-1] or arrays, fold, **kinds)


class ForgetsToDivide(FakeBackend):
    def combine(self, arrays, fold, *, divisor, **kinds):
        """Divide by 1."""
        return super().combine(arrays, fold, divisor=None if divisor is None else 1, **kinds)


class ConcatenatesBackwards(FakeBackend):
    def ravel_concat(self, arrays):
        """Put the last first."""
        return super().ravel_concat(arrays[::-1])


class SplitsTooEarly(FakeBackend):
    def split(self, array, start, stop):
        """Begin one element early."""
        return super().split(array, max(start - 1, 0), stop)


class StaysWhereItIs(FakeBackend):
    def copy_to(self, array, device):
        """Copy, but not to the device."""
        copy = super().copy_to(array, device)
        copy.device = array.device
        return copy


WRONG = (
    OwnsAll, Aliases, LosesTheLast, ForgetsToDivide, ConcatenatesBackwards, SplitsTooEarly, StaysWhereItIs
)  # fmt: skip


def run_all(adapter):
    """Run the whole suite."""
    for case in CONFORMANCE:
        case.run(adapter)


class TestConformanceError:
    @pytest.mark.parametrize("wrong", WRONG)
    def test_is_raised_for_a_wrong_backend(self, wrong):
        fake = wrong(2)
        with pytest.raises(ConformanceError):
            run_all(Adapter(fake, fake.devices, fake.array, lambda array: array.data))
