import re

import numpy as np
import pytest

from treefold import (
    HierarchicalCopyAllReduce,
    IndexedSlices,
    Mirrored,
    PerReplica,
    ReductionToOneDevice,
)
from treefold.backends import loaded_backends
from treefold.errors import DeviceError, DtypeError, MismatchError, OutputError

F32 = np.float32
HIERARCHICAL, ONE_DEVICE = HierarchicalCopyAllReduce(), ReductionToOneDevice()
CROSSED = PerReplica([np.zeros((3, 4), F32), np.zeros((3, 4), F32), np.zeros((4, 3), F32)])


def per_replica(*values):
    return PerReplica(list(values))


def overlapping():
    memory = np.zeros(8)
    HIERARCHICAL.reduce("sum", per_replica(memory[:4]), "cpu:0", out=memory[2:6])


def twice_the_same():
    memory = np.zeros(4)
    HIERARCHICAL.reduce("sum", per_replica(np.zeros(4)), ["cpu:0", "cpu:1"], out=per_replica(memory, memory))


# call, class, the whole sentence
MISTAKES = [
    (
        lambda: HIERARCHICAL.reduce("sum", CROSSED, CROSSED),
        MismatchError,
        "Replica 2 has float32 (4, 3) where replica 0 has float32 (3, 4). Every replica must bring the same "
        "shape; transpose or pad one of them.",
    ),
    (
        lambda: HIERARCHICAL.reduce(
            "sum",
            per_replica({"dense": {"kernel": np.zeros((3, 4), F32)}}, {"dense": {"kernel": np.zeros((3, 4))}}),
            "cpu:0",
        ),
        MismatchError,
        "Replica 1 has float64 (3, 4) at ['dense']['kernel'] where replica 0 has float32 (3, 4). Every "
        "replica must bring the same dtype; cast one of them.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica({"a": 1.0}, {"b": 1.0}), "cpu:0"),
        MismatchError,
        "Replica 1 has nothing at ['a'] where replica 0 has a value. Every replica must bring the same structure.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica([1.0], (1.0,)), "cpu:0"),
        MismatchError,
        "Replica 1 has a tuple where replica 0 has a list. Every replica must bring the same structure.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica([1.0, None], [1.0, 2.0]), "cpu:0"),
        MismatchError,
        "Replica 1 has a value at [1] where replica 0 has None. Every replica must bring the same kind of "
        "value; convert one of them.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica(1.0, IndexedSlices(np.ones((1, 2)), np.array([0]))), "cpu:0"),
        MismatchError,
        "Some replicas bring an array and others IndexedSlices without dense_shape. Give every IndexedSlices "
        "its dense_shape, so that the rows can be added to the array.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica(1.0), "gpu:0"),
        DeviceError,
        "NumPy has no device gpu:0 here. It has cpu:0, cpu:1 and so on, which share the host's memory. Name one of "
        "these; nothing is placed elsewhere for you.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica(1.0), ["cpu:0", "/device:GPU:1"]),
        DeviceError,
        "NumPy has no device /device:GPU:1 here. It has cpu:0, cpu:1 and so on, which share the host's memory. Name "
        "one of these; nothing is placed elsewhere for you.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica(1.0), "cp:0"),
        DeviceError,
        "NumPy has no device cp:0 here. Did you mean cpu:0? It has cpu:0, cpu:1 and so on, which share the host's "
        "memory. Name one of these; nothing is placed elsewhere for you.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica(1.0), "nonsense:x"),
        DeviceError,
        '\'nonsense:x\' is no device name. Write "cpu:0", "gpu:1", "cuda:1", "/device:GPU:1" or '
        '"/job:localhost/replica:0/task:0/device:GPU:1".',
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica(1.0), "/job:worker/task:3/device:GPU:1"),
        DeviceError,
        "'/job:worker/task:3/device:GPU:1' is a device of rank 3, and ranks need a group of processes, which this call "
        'does not have. Names without a rank mean devices of this process: write "gpu:1" for its own.',
    ),
    (
        lambda: ONE_DEVICE.batch_reduce("sum", [(per_replica(1.0), "cpu:0"), (per_replica(1.0, 2), "cpu:0")]),
        MismatchError,
        "Pair 1: Replica 1 has int64 () where replica 0 has float64 (). Every replica must bring the same "
        "dtype; cast one of them.",
    ),
    (
        lambda: ONE_DEVICE.reduce("sum", per_replica(np.array([True])), "cpu:0"),
        DtypeError,
        "SUM of bool is not defined. Use MAX for any, MIN for all, or cast to an integer dtype to count.",
    ),
    (
        lambda: ONE_DEVICE.reduce("max", per_replica(1j), "cpu:0"),
        DtypeError,
        "MAX of complex128 is not defined: complex numbers have no order. Use SUM, MEAN or PRODUCT.",
    ),
    (
        lambda: ONE_DEVICE.reduce("sum", per_replica(np.array(["a"])), "cpu:0"),
        DtypeError,
        "str32 cannot be reduced. Reducible are float16, bfloat16, float32, float64, int8, int16, int32, "
        "int64, uint8, uint16, uint32, uint64, complex64, complex128, bool; cast to one of them.",
    ),
    (
        lambda: ONE_DEVICE.reduce("sum", per_replica(np.zeros(2, "M8[s]")), "cpu:0"),
        DtypeError,
        "datetime64[s] cannot be reduced. Reducible are float16, bfloat16, float32, float64, int8, int16, "
        "int32, int64, uint8, uint16, uint32, uint64, complex64, complex128, bool; cast to one of them.",
    ),
    (
        lambda: ReductionToOneDevice("cuda:0").reduce("sum", per_replica(1.0), "cpu:0"),
        DeviceError,
        "NumPy has no device cuda:0 here. It has cpu:0, cpu:1 and so on, which share the host's memory. Name one of "
        "these; nothing is placed elsewhere for you.",
    ),
    (
        lambda: ONE_DEVICE.gather(per_replica(np.zeros((2, 3)), np.zeros((2, 4))), "cpu:0", 0),
        MismatchError,
        "Replica 1 has float64 (2, 4) where replica 0 has float64 (2, 3). Shapes may differ along axis 0 "
        "only; reshape one of them.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica(np.zeros(2)), "cpu:0", out=per_replica(np.zeros(3))),
        OutputError,
        "Component 0 of out has float64 (3,). "
        "To take the result it needs a writable NumPy array of float64 (2,). Nothing was written.",
    ),
    (
        lambda: HIERARCHICAL.reduce(
            "sum", per_replica(np.zeros(2)), "cpu:0", out=per_replica(np.zeros(2), np.zeros(2))
        ),
        OutputError,
        "out has 2 components for 1 destination. Give one component for each. Nothing was written.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica(np.zeros(2)), ["cpu:0", "cpu:1"], out=[1, 2]),
        OutputError,
        "out is [1, 2]. It takes a PerReplica or Mirrored with a component for each of the 2 destinations. "
        "Nothing was written.",
    ),
    (
        lambda: HIERARCHICAL.reduce("mean", per_replica(np.zeros(2, int)), "cpu:0", out=np.zeros(2, int)),
        OutputError,
        "Component 0 of out has int64 (2,). "
        "To take the result it needs a writable NumPy array of float64 (2,). Nothing was written.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica(np.zeros(2)), "cpu:0", out=np.broadcast_to(np.zeros(1), 2)),
        OutputError,
        "Component 0 of out has an array that cannot be written. "
        "To take the result it needs a writable NumPy array of float64 "
        "(2,). Nothing was written.",
    ),
    (
        overlapping,
        OutputError,
        "Component 0 of out overlaps replica 0's array. Each array of out must be exactly one replica's array"
        " of the same place, or share memory with none. Nothing was written.",
    ),
    (
        twice_the_same,
        OutputError,
        "Component 1 of out overlaps component 0's array. Each array of out must be exactly one replica's "
        "array of the same place, or share memory with none. Nothing was written.",
    ),
    (
        lambda: HIERARCHICAL.reduce(
            "sum", per_replica({"a": np.zeros(4)}), "cpu:0", out=per_replica({"b": np.zeros(4)})
        ),
        OutputError,
        "Component 0 of out has the structure {'b': *} where the result has {'a': *}. Nothing was written.",
    ),
    (
        lambda: Mirrored([1.0], ["cpu:3"]).on("/CPU:1"),
        DeviceError,
        "There is no component on /CPU:1; there are components on cpu:3.",
    ),
    (
        lambda: ONE_DEVICE.reduce(
            "sum", per_replica(IndexedSlices(np.ones((2, 2)), np.array([0, 1])), np.ones((2, 2))), "cpu:0"
        ),
        MismatchError,
        "Some replicas bring an array and others IndexedSlices without dense_shape. Give every IndexedSlices "
        "its dense_shape, so that the rows can be added to the array.",
    ),
]


class TestValueMistakes:
    @pytest.mark.parametrize(("call", "kind", "sentence"), MISTAKES, ids=[sentence for *_, sentence in MISTAKES])
    def test_get_one_sentence_each(self, call, kind, sentence):
        # Other tests of this process may have imported frameworks.
        sentence = sentence.replace("loaded: NumPy.", f"loaded: {', '.join(b.name for b in loaded_backends())}.")
        with pytest.raises(kind, match=f"^{re.escape(sentence)}$") as caught:
            call()
        assert type(caught.value) is kind
