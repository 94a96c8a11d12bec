import numpy as np
import pytest

from treefold import HierarchicalCopyAllReduce, PerReplica, ReductionToOneDevice, errors
from treefold.errors import MismatchError, OutputError

F32 = np.float32
HIERARCHICAL, ONE_DEVICE = HierarchicalCopyAllReduce(), ReductionToOneDevice()


def per_replica(*values):
    return PerReplica(list(values))


class TestErrors:
    def test_of_callers_are_value_errors_as_in_tensorflow(self):
        kinds = [getattr(errors, name) for name in errors.__all__ if name != "TreefoldError"]
        assert {kind.__name__ for kind in kinds if issubclass(kind, TypeError)} == {"CallError"}
        missing = {kind.__name__ for kind in kinds if issubclass(kind, ImportError)}
        assert missing == {"FrameworkError", "InstallationError", "MissingExtraError"}
        others = {"ConformanceError", "FakeOutOfMemoryError", "GpuError", "MissingImplementationError", "PeerError"}
        others |= {"NotFiniteError"}  # a RuntimeError, as in PyTorch
        others |= {"NotReproducibleError"}  # an AssertionError, as tests raise
        others |= {"ComponentError", "UnknownNameError"}  # of Python's own kinds, an IndexError and an AttributeError
        groups = {kind.__name__ for kind in kinds if issubclass(kind, errors.GroupError)} - {"CallMismatchError"}
        not_values = {kind.__name__ for kind in kinds if not issubclass(kind, ValueError)}
        assert not_values == {"CallError"} | missing | others | groups
        assert all(issubclass(kind, errors.TreefoldError) for kind in kinds)


class TestNothingIsHalfWritten:
    @pytest.mark.parametrize(
        "spoil",
        [
            lambda out: out[1].pop("b"),
            lambda out: out[1].update(b=np.zeros(9)),
            lambda out: out[1].update(b=np.zeros(3, F32)),
            lambda out: out[1]["b"].setflags(write=False),
            lambda out: out[1].update(b=out[0]["a"][:3]),
            lambda out: out[1].update(b=[1.0, 2.0, 3.0]),
        ],
    )
    def test_when_a_later_component_of_out_is_wrong(self, spoil):
        value = per_replica(*({"a": np.full(5, 2.0**r), "b": np.full(3, 2.0**r)} for r in range(2)))
        out = [{"a": np.full(5, -1.0), "b": np.full(3, -1.0)} for _ in range(2)]
        spoil(out)
        with pytest.raises(OutputError, match=r"Nothing was written\.$"):
            HIERARCHICAL.reduce("sum", value, value, out=PerReplica(out))
        assert (out[0]["a"] == -1).all()
        assert (out[0]["b"] == -1).all()

    def test_when_a_later_pair_is_wrong(self):
        good, bad = per_replica(np.ones(2), np.ones(2)), per_replica(np.ones(2), np.ones(3))
        with pytest.raises(MismatchError, match=r"^Pair 1: Replica 1 has float64 \(3,\) where replica 0 has"):
            ONE_DEVICE.batch_reduce("sum", [(good, good), (bad, bad)], out=[good, bad])
        assert all((component == 1).all() for component in good)
