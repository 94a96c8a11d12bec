import re

import numpy as np
import pytest

from treefold import (
    AllReduceCrossDeviceOps,
    CommunicationOptions,
    HierarchicalCopyAllReduce,
    IndexedSlices,
    Mirrored,
    NcclAllReduce,
    PerReplica,
    ReductionToOneDevice,
    reduce,
)
from treefold.errors import ArgumentError, CallError, DeviceError, DtypeError, MismatchError, OutputError

F32 = np.float32
OPS = ReductionToOneDevice()
CROSSED = PerReplica([np.zeros((3, 4), F32), np.zeros((3, 4), F32), np.zeros((4, 3), F32)])
ROWS = IndexedSlices(np.ones((1, 2)), np.array([0]))

# What several sentences say.
PACKS = 'It takes 0 (no packing), a positive whole number of packs, or "auto" (one pack per device).'
GROUPING = "It takes a whole number, 0 or more; 0 turns grouping off."
REDUCE_OPS = 'It takes "SUM", "MEAN", "MIN", "MAX" or "PRODUCT", or a ReduceOp.'
NO_ARRAY = (
    "which is no array of a loaded framework. A value is a PerReplica of arrays or of pytrees of arrays, "
    "or one array or IndexedSlices. A framework counts once it is imported."
)
DESTINATION = (
    "It takes a device (a name, or an object such as torch.device), a sequence of devices, an array, an "
    "IndexedSlices, or any DistributedValues (whose devices are meant)."
)
ONE_OR_MANY = (
    "which may mean one value per replica or one structure. Say which: PerReplica([replica_0, replica_1, "
    "...]), where each may be such a structure."
)
OP_MEANT = "names a device, and a reduce op is meant."
DEVICE_MEANT = "names a reduce op, and a device is meant."
HERE = (
    "It has cpu:0, cpu:1 and so on, which share the host's memory. Name one of these; nothing is placed "
    "elsewhere for you."
)
REPLICAS = "It takes a list or tuple with one value per replica."
A_PAIR = "Each must be a tuple of two: (value, destinations)."
BY_HOST = "cannot be honoured by the host executor, which runs this plan."
WEIGHTS = "It takes a list, tuple or one-dimensional array of one finite number ≥ 0 per replica, not all of them 0."
INDICES = "Indices must be int32 or int64, of one axis."
REDUCIBLE = (
    "cannot be reduced. Reducible are float16, bfloat16, float32, float64, int8, int16, int32, int64, "
    "uint8, uint16, uint32, uint64, complex64, complex128, bool; cast to one of them."
)
SAME_DTYPE = "Every replica must bring the same dtype; cast one of them."
SAME_STRUCTURE = "Every replica must bring the same structure."
NO_SHAPE = (
    "Some replicas bring an array and others IndexedSlices without dense_shape. Give every IndexedSlices "
    "its dense_shape, so that the rows can be added to the array."
)
WRITABLE = "To take the result it needs a writable NumPy array of float64 (2,). Nothing was written."
ALIASING = (
    "Each array of out must be exactly one replica's array of the same place, or share memory with none. "
    "Nothing was written."
)


def total(value, destinations="cpu:0", *rest, **options):
    return OPS.reduce("sum", value, destinations, *rest, **options)


def per_replica(*values):
    return PerReplica(list(values))


def overlapping():
    memory = np.zeros(8)
    total(per_replica(memory[:4]), out=memory[2:6])


def twice_the_same():
    memory = np.zeros(4)
    total(per_replica(np.zeros(4)), ["cpu:0", "cpu:1"], out=per_replica(memory, memory))


MISTAKES = {
    ArgumentError: [
        (lambda: HierarchicalCopyAllReduce(-1), f"HierarchicalCopyAllReduce got num_packs=-1. {PACKS}"),
        (lambda: NcclAllReduce(1.5), f"NcclAllReduce got num_packs=1.5. {PACKS}"),
        (lambda: NcclAllReduce(num_packs=True), f"NcclAllReduce got num_packs=True. {PACKS}"),
        (lambda: AllReduceCrossDeviceOps(num_packs="two"), f"AllReduceCrossDeviceOps got num_packs='two'. {PACKS}"),
        (
            lambda: AllReduceCrossDeviceOps("ring"),
            'all_reduce_alg is \'ring\'. It takes "nccl" or "hierarchical_copy".',
        ),
        (
            lambda: AllReduceCrossDeviceOps("nccl", 0, -1),
            f"AllReduceCrossDeviceOps got agg_small_grads_max_bytes=-1. {GROUPING}",
        ),
        (
            lambda: AllReduceCrossDeviceOps("nccl", 0, 1, 2.5),
            f"AllReduceCrossDeviceOps got agg_small_grads_max_group=2.5. {GROUPING}",
        ),
        (lambda: OPS.reduce("total", per_replica(1.0), "cpu:0"), f"The reduce op is 'total'. {REDUCE_OPS}"),
        (
            lambda: reduce([1.0, 2.0], "cpu:0"),
            f"'cpu:0' {OP_MEANT} Write treefold.reduce(values, 'sum', to='cpu:0'), or ops.reduce('sum', value, "
            "'cpu:0').",
        ),
        (
            lambda: OPS.batch_reduce("GPU", [(per_replica(1.0), "sum")]),
            f"'GPU' {OP_MEANT} Write treefold.reduce(values, 'sum', to='GPU'), or ops.reduce('sum', value, 'GPU').",
        ),
        (lambda: OPS.reduce(None, per_replica(1.0), "cpu:0"), f"The reduce op is None. {REDUCE_OPS}"),
        (lambda: total([1, 2]), f"per_replica_value is a list, {ONE_OR_MANY}"),
        (lambda: total({"a": 1}), f"per_replica_value is a dict, {ONE_OR_MANY}"),
        (lambda: total("abc"), f"per_replica_value is 'abc', {NO_ARRAY}"),
        (lambda: total(None), f"per_replica_value is None, {NO_ARRAY}"),
        (lambda: PerReplica([]), "PerReplica got no values. It takes one value per replica, at least one."),
        (lambda: PerReplica(np.zeros(3)), f"PerReplica got an ndarray. {REPLICAS}"),
        (
            lambda: PerReplica([1, 2], devices=["cpu:0"]),
            "PerReplica got 2 values and 1 device. Name one device for each value.",
        ),
        (lambda: PerReplica("ab"), f"PerReplica got 'ab'. {REPLICAS}"),
        (lambda: total(per_replica(1.0), []), f"The destination is empty. {DESTINATION}"),
        (lambda: total(per_replica(1.0), None), f"The destination is None. {DESTINATION}"),
        (lambda: total(per_replica(1.0), ["cpu:0", 3]), f"The destination is ['cpu:0', 3]. {DESTINATION}"),
        (lambda: total(per_replica(1.0), ""), f"The destination is empty. {DESTINATION}"),
        (lambda: total(per_replica(1.0), b"cpu:0"), f"The destination is b'cpu:0'. {DESTINATION}"),
        (
            lambda: OPS.batch_reduce("sum", None),
            "value_destination_pairs is None. It takes a sequence of (value, destinations) tuples.",
        ),
        (
            lambda: OPS.batch_reduce("sum", [[per_replica(1.0), "cpu:0"]]),
            f"Element 0 of value_destination_pairs is a list of 2. {A_PAIR}",
        ),
        (
            lambda: OPS.batch_reduce("sum", [(per_replica(1.0), "cpu:0", 1)]),
            f"Element 0 of value_destination_pairs is a tuple of 3. {A_PAIR}",
        ),
        (
            lambda: OPS.reduce("max", per_replica(ROWS), "cpu:0"),
            "MAX of IndexedSlices is not defined. Rows take SUM or MEAN; make them dense for MAX.",
        ),
        (lambda: total(per_replica(1.0), options=3), "options is 3. It takes a CommunicationOptions, or None."),
        (
            lambda: total(per_replica(1.0), "cpu:0", CommunicationOptions(timeout_seconds=3)),
            f"timeout_seconds=3 {BY_HOST} Leave timeout_seconds out.",
        ),
        (
            lambda: total(per_replica(1.0), "cpu:0", CommunicationOptions(implementation="nccl")),
            f"implementation=NCCL {BY_HOST} Leave implementation out.",
        ),
        (
            lambda: CommunicationOptions(implementation="bogus"),
            'implementation is \'bogus\'. It takes "AUTO", "RING" or "NCCL".',
        ),
        (
            lambda: OPS.reduce("mean", per_replica(1.0, 2.0), "cpu:0", weights=[1]),
            "weights has 1 number for 2 replicas. Give one for each replica.",
        ),
        (
            lambda: total(per_replica(1.0, 2.0), weights=[1, 2]),
            "weights goes with MEAN and the op is SUM. Leave weights out, or multiply the values yourself.",
        ),
        (lambda: OPS.reduce("mean", per_replica(1.0, 2.0), "cpu:0", weights=[0, 0]), f"weights is [0, 0]. {WEIGHTS}"),
        (
            lambda: OPS.reduce("mean", per_replica(1.0, 2.0), "cpu:0", weights=[-1, float("nan")]),
            f"weights is [-1, nan]. {WEIGHTS}",
        ),
        (
            lambda: ReductionToOneDevice(accumulation_fn=3),
            "accumulation_fn is 3. It takes a function of the list of arrays, or None.",
        ),
        (
            lambda: ReductionToOneDevice(accumulation_fn=lambda a: a).reduce("sum", per_replica(1.0, 2.0), "cpu:0"),
            "accumulation_fn returned a list. It must return one float64 (), like each array it got.",
        ),
        (
            lambda: ReductionToOneDevice(accumulation_fn=lambda _: np.zeros(3, F32)).reduce(
                "sum", per_replica(1.0, 2.0), "cpu:0"
            ),
            "accumulation_fn returned float32 (3,). It must return one float64 (), like each array it got.",
        ),
        (
            lambda: OPS.gather(per_replica(1.0), "cpu:0", 0),
            "gather got scalars, which have no axis to lie along. Reshape each to (1,).",
        ),
        (
            lambda: OPS.gather(per_replica(np.zeros(2)), "cpu:0", 5),
            "gather got axis=5. It takes -1 to 0 for arrays of 1 axis.",
        ),
        (lambda: OPS.gather(per_replica(np.zeros(2)), "cpu:0", "x"), "gather got axis='x'. It takes a whole number."),
        (
            lambda: OPS.broadcast(per_replica(1.0, 2.0), "cpu:0"),
            "broadcast got a PerReplica. It takes one value; pick a component, such as values[0].",
        ),
        (lambda: OPS.broadcast("x", "cpu:0"), f"The value is 'x', {NO_ARRAY}"),
        (
            lambda: total(per_replica({"a": np.ma.array([1, 2], mask=[0, 1])})),
            f"Replica 0 at ['a'] is a MaskedArray, {NO_ARRAY}",
        ),
        (
            lambda: HierarchicalCopyAllReduce(accumulate="x"),
            'accumulate is \'x\'. It takes "exact" (the default) or "native".',
        ),
        (
            lambda: HierarchicalCopyAllReduce(topology=3),
            'topology is 3. It takes a treefold.Topology, the name of a known machine such as "dgx1_v100", the '
            "path of a topology file, or None.",
        ),
        (lambda: PerReplica([per_replica(1.0)]), f"PerReplica got a PerReplica. {REPLICAS}"),
        (
            lambda: (
                per_replica(IndexedSlices(np.ones(2), np.ones(3)))
                and total(per_replica(IndexedSlices(np.ones(2), np.ones(3))))
            ),
            f"Replica 0 has IndexedSlices with indices float64 (3,). {INDICES}",
        ),
        (
            lambda: total(per_replica(IndexedSlices(np.ones((1, 2)), np.array(0)))),
            f"Replica 0 has IndexedSlices with indices int64 (). {INDICES}",
        ),
        (
            lambda: total(per_replica(IndexedSlices(np.ones((2, 2)), np.array([0, 7]), (2, 2)), np.ones((2, 2)))),
            "Replica 0 has IndexedSlices with indices from 0 to 7. Its dense_shape allows 0 to 1.",
        ),
    ],
    DeviceError: [
        (
            lambda: reduce([1.0, 2.0], to="mean"),
            f"'mean' {DEVICE_MEANT} Write the op as op='mean', or first where an ops object is called, and here a "
            'device such as "cpu:0".',
        ),
        (
            lambda: total(per_replica(1.0), ["cpu:0", "Avg"]),
            f"'Avg' {DEVICE_MEANT} Write the op as op='Avg', or first where an ops object is called, and here a "
            'device such as "cpu:0".',
        ),
        (
            lambda: ReductionToOneDevice("max"),
            f"'max' {DEVICE_MEANT} Write the op as op='max', or first where an ops object is called, and here a "
            'device such as "cpu:0".',
        ),
        (lambda: total(per_replica(1.0), "gpu:0"), f"NumPy has no device gpu:0 here. {HERE}"),
        (
            lambda: total(per_replica(1.0), ["cpu:0", "/device:GPU:1"]),
            f"NumPy has no device /device:GPU:1 here. {HERE}",
        ),
        (lambda: total(per_replica(1.0), "cp:0"), f"NumPy has no device cp:0 here. Did you mean cpu:0? {HERE}"),
        (
            lambda: total(per_replica(1.0), "nonsense:x"),
            '\'nonsense:x\' is no device name. Write "cpu:0", "gpu:1", "cuda:1", "/device:GPU:1" or '
            '"/job:localhost/replica:0/task:0/device:GPU:1".',
        ),
        (
            lambda: total(per_replica(1.0), "/job:worker/task:3/device:GPU:1"),
            "'/job:worker/task:3/device:GPU:1' is a device of rank 3, and ranks need a group of processes, which "
            'this call does not have. Names without a rank mean devices of this process: write "gpu:1" for its '
            "own.",
        ),
        (
            lambda: ReductionToOneDevice("cuda:0").reduce("sum", per_replica(1.0), "cpu:0"),
            f"NumPy has no device cuda:0 here. {HERE}",
        ),
        (
            lambda: Mirrored([1.0], ["cpu:3"]).on("/CPU:1"),
            "There is no component on /CPU:1; there are components on cpu:3.",
        ),
    ],
    CallError: [
        (lambda: total(PerReplica), "PerReplica is the class; make an object of it first: PerReplica()."),
        (
            lambda: total(per_replica(1.0), options=CommunicationOptions(), experimental_hints=CommunicationOptions()),
            "options and experimental_hints are two names of one argument. Give one of them.",
        ),
    ],
    MismatchError: [
        (
            lambda: total(CROSSED, CROSSED),
            "Replica 2 has float32 (4, 3) where replica 0 has float32 (3, 4). Every replica must bring the same "
            "shape; transpose or pad one of them.",
        ),
        (
            lambda: total(
                per_replica({"dense": {"kernel": np.zeros((3, 4), F32)}}, {"dense": {"kernel": np.zeros((3, 4))}})
            ),
            f"Replica 1 has float64 (3, 4) at ['dense']['kernel'] where replica 0 has float32 (3, 4). {SAME_DTYPE}",
        ),
        (
            lambda: total(per_replica({"a": 1.0}, {"b": 1.0})),
            f"Replica 1 has nothing at ['a'] where replica 0 has a value. {SAME_STRUCTURE}",
        ),
        (
            lambda: total(per_replica([1.0], (1.0,))),
            f"Replica 1 has a tuple where replica 0 has a list. {SAME_STRUCTURE}",
        ),
        (
            lambda: total(per_replica([1.0, None], [1.0, 2.0])),
            "Replica 1 has a value at [1] where replica 0 has None. Every replica must bring the same kind of "
            "value; convert one of them.",
        ),
        (lambda: total(per_replica(1.0, ROWS)), NO_SHAPE),
        (
            lambda: OPS.batch_reduce("sum", [(per_replica(1.0), "cpu:0"), (per_replica(1.0, 2), "cpu:0")]),
            f"Pair 1: Replica 1 has int64 () where replica 0 has float64 (). {SAME_DTYPE}",
        ),
        (
            lambda: OPS.gather(per_replica(np.zeros((2, 3)), np.zeros((2, 4))), "cpu:0", 0),
            "Replica 1 has float64 (2, 4) where replica 0 has float64 (2, 3). Shapes may differ along axis 0 "
            "only; reshape one of them.",
        ),
        (lambda: total(per_replica(IndexedSlices(np.ones((2, 2)), np.array([0, 1])), np.ones((2, 2)))), NO_SHAPE),
    ],
    DtypeError: [
        (
            lambda: total(per_replica(np.array([True]))),
            "SUM of bool is not defined. Use MAX for any, MIN for all, or cast to an integer dtype to count.",
        ),
        (
            lambda: OPS.reduce("max", per_replica(1j), "cpu:0"),
            "MAX of complex128 is not defined: complex numbers have no order. Use SUM, MEAN or PRODUCT.",
        ),
        (lambda: total(per_replica(np.array(["a"]))), f"str32 {REDUCIBLE}"),
        (lambda: total(per_replica(np.zeros(2, "M8[s]"))), f"datetime64[s] {REDUCIBLE}"),
    ],
    OutputError: [
        (
            lambda: total(per_replica(np.zeros(2)), out=per_replica(np.zeros(3))),
            f"Component 0 of out has float64 (3,). {WRITABLE}",
        ),
        (
            lambda: total(per_replica(np.zeros(2)), out=per_replica(np.zeros(2), np.zeros(2))),
            "out has 2 components for 1 destination. Give one component for each. Nothing was written.",
        ),
        (
            lambda: total(per_replica(np.zeros(2)), ["cpu:0", "cpu:1"], out=[1, 2]),
            "out is [1, 2]. It takes a PerReplica or Mirrored with a component for each of the 2 destinations. "
            "Nothing was written.",
        ),
        (
            lambda: OPS.reduce("mean", per_replica(np.zeros(2, int)), "cpu:0", out=np.zeros(2, int)),
            f"Component 0 of out has int64 (2,). {WRITABLE}",
        ),
        (
            lambda: total(per_replica(np.zeros(2)), out=np.broadcast_to(np.zeros(1), 2)),
            f"Component 0 of out has an array that cannot be written. {WRITABLE}",
        ),
        (overlapping, f"Component 0 of out overlaps replica 0's array. {ALIASING}"),
        (twice_the_same, f"Component 1 of out overlaps component 0's array. {ALIASING}"),
        (
            lambda: total(per_replica({"a": np.zeros(4)}), out=per_replica({"b": np.zeros(4)})),
            "Component 0 of out has the structure {'b': *} where the result has {'a': *}. Nothing was written.",
        ),
    ],
}


@pytest.mark.parametrize(
    ("kind", "call", "sentence"), [(kind, *mistake) for kind, mistakes in MISTAKES.items() for mistake in mistakes]
)
def test_mistakes_get_one_sentence_each(kind, call, sentence):
    with pytest.raises(kind, match=f"^{re.escape(sentence)}$") as caught:
        call()
    assert type(caught.value) is kind
