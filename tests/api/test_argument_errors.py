import re

import numpy as np
import pytest

from treefold import (
    AllReduceCrossDeviceOps,
    CommunicationOptions,
    HierarchicalCopyAllReduce,
    IndexedSlices,
    NcclAllReduce,
    PerReplica,
    ReductionToOneDevice,
    reduce,
)
from treefold.errors import ArgumentError, CallError, DeviceError

F32 = np.float32
HIERARCHICAL, ONE_DEVICE = HierarchicalCopyAllReduce(), ReductionToOneDevice()


def per_replica(*values):
    return PerReplica(list(values))


# call, class, the whole sentence
MISTAKES = [
    (
        lambda: HierarchicalCopyAllReduce(-1),
        ArgumentError,
        "HierarchicalCopyAllReduce got num_packs=-1. It takes 0 (no packing), a positive whole number of "
        'packs, or "auto" (one pack per device).',
    ),
    (
        lambda: NcclAllReduce(1.5),
        ArgumentError,
        "NcclAllReduce got num_packs=1.5. It takes 0 (no packing), a positive whole number of packs, or "
        '"auto" (one pack per device).',
    ),
    (
        lambda: NcclAllReduce(num_packs=True),
        ArgumentError,
        "NcclAllReduce got num_packs=True. It takes 0 (no packing), a positive whole number of packs, or "
        '"auto" (one pack per device).',
    ),
    (
        lambda: AllReduceCrossDeviceOps(num_packs="two"),
        ArgumentError,
        "AllReduceCrossDeviceOps got num_packs='two'. It takes 0 (no packing), a positive whole number of "
        'packs, or "auto" (one pack per device).',
    ),
    (
        lambda: AllReduceCrossDeviceOps("ring"),
        ArgumentError,
        'all_reduce_alg is \'ring\'. It takes "nccl" or "hierarchical_copy".',
    ),
    (
        lambda: AllReduceCrossDeviceOps("nccl", 0, -1),
        ArgumentError,
        "AllReduceCrossDeviceOps got agg_small_grads_max_bytes=-1. It takes a whole number, 0 or more; 0 "
        "turns grouping off.",
    ),
    (
        lambda: AllReduceCrossDeviceOps("nccl", 0, 1, 2.5),
        ArgumentError,
        "AllReduceCrossDeviceOps got agg_small_grads_max_group=2.5. It takes a whole number, 0 or more; 0 "
        "turns grouping off.",
    ),
    (
        lambda: HIERARCHICAL.reduce("total", per_replica(1.0), "cpu:0"),
        ArgumentError,
        'The reduce op is \'total\'. It takes "SUM", "MEAN", "MIN", "MAX" or "PRODUCT", or a ReduceOp.',
    ),
    (
        lambda: reduce([1.0, 2.0], "cpu:0"),
        ArgumentError,
        "'cpu:0' names a device, and a reduce op is meant. Write treefold.reduce(values, 'sum', to='cpu:0'), or "
        "ops.reduce('sum', value, 'cpu:0').",
    ),
    (
        lambda: HIERARCHICAL.batch_reduce("GPU", [(per_replica(1.0), "sum")]),
        ArgumentError,
        "'GPU' names a device, and a reduce op is meant. Write treefold.reduce(values, 'sum', to='GPU'), or "
        "ops.reduce('sum', value, 'GPU').",
    ),
    (
        lambda: reduce([1.0, 2.0], to="mean"),
        DeviceError,
        "'mean' names a reduce op, and a device is meant. Write the op as op='mean', or first where an ops object "
        'is called, and here a device such as "cpu:0".',
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica(1.0), ["cpu:0", "Avg"]),
        DeviceError,
        "'Avg' names a reduce op, and a device is meant. Write the op as op='Avg', or first where an ops object "
        'is called, and here a device such as "cpu:0".',
    ),
    (
        lambda: ReductionToOneDevice("max"),
        DeviceError,
        "'max' names a reduce op, and a device is meant. Write the op as op='max', or first where an ops object "
        'is called, and here a device such as "cpu:0".',
    ),
    (
        lambda: HIERARCHICAL.reduce(None, per_replica(1.0), "cpu:0"),
        ArgumentError,
        'The reduce op is None. It takes "SUM", "MEAN", "MIN", "MAX" or "PRODUCT", or a ReduceOp.',
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", [1, 2], "cpu:0"),
        ArgumentError,
        "per_replica_value is a list, which may mean one value per replica or one structure. Say which: "
        "PerReplica([replica_0, replica_1, ...]), where each may be such a structure.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", {"a": 1}, "cpu:0"),
        ArgumentError,
        "per_replica_value is a dict, which may mean one value per replica or one structure. Say which: "
        "PerReplica([replica_0, replica_1, ...]), where each may be such a structure.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", "abc", "cpu:0"),
        ArgumentError,
        "per_replica_value is 'abc', which is no array of a loaded framework. A value is a PerReplica of "
        "arrays or of pytrees of arrays, or one array or IndexedSlices. A framework counts once it is "
        "imported.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", None, "cpu:0"),
        ArgumentError,
        "per_replica_value is None, which is no array of a loaded framework. A value is a PerReplica of "
        "arrays or of pytrees of arrays, or one array or IndexedSlices. A framework counts once it is "
        "imported.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", PerReplica, "cpu:0"),
        CallError,
        "PerReplica is the class; make an object of it first: PerReplica().",
    ),
    (
        lambda: PerReplica([]),
        ArgumentError,
        "PerReplica got no values. It takes one value per replica, at least one.",
    ),
    (
        lambda: PerReplica(np.zeros(3)),
        ArgumentError,
        "PerReplica got an ndarray. It takes a list or tuple with one value per replica.",
    ),
    (
        lambda: PerReplica([1, 2], devices=["cpu:0"]),
        ArgumentError,
        "PerReplica got 2 values and 1 device. Name one device for each value.",
    ),
    (
        lambda: PerReplica("ab"),
        ArgumentError,
        "PerReplica got 'ab'. It takes a list or tuple with one value per replica.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica(1.0), []),
        ArgumentError,
        "The destination is empty. It takes a device (a name, or an object such as torch.device), a "
        "sequence of devices, an array, an IndexedSlices, or any DistributedValues (whose devices are meant).",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica(1.0), None),
        ArgumentError,
        "The destination is None. It takes a device (a name, or an object such as torch.device), a "
        "sequence of devices, an array, an IndexedSlices, or any DistributedValues (whose devices are meant).",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica(1.0), ["cpu:0", 3]),
        ArgumentError,
        "The destination is ['cpu:0', 3]. It takes a device (a name, or an object such as torch.device), a "
        "sequence of devices, an array, an IndexedSlices, or any DistributedValues (whose devices are meant).",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica(1.0), ""),
        ArgumentError,
        "The destination is empty. It takes a device (a name, or an object such as torch.device), a "
        "sequence of devices, an array, an IndexedSlices, or any DistributedValues (whose devices are meant).",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica(1.0), b"cpu:0"),
        ArgumentError,
        "The destination is b'cpu:0'. It takes a device (a name, or an object such as torch.device), a "
        "sequence of devices, an array, an IndexedSlices, or any DistributedValues (whose devices are meant).",
    ),
    (
        lambda: ONE_DEVICE.batch_reduce("sum", None),
        ArgumentError,
        "value_destination_pairs is None. It takes a sequence of (value, destinations) tuples.",
    ),
    (
        lambda: ONE_DEVICE.batch_reduce("sum", [[per_replica(1.0), "cpu:0"]]),
        ArgumentError,
        "Element 0 of value_destination_pairs is a list of 2. Each must be a tuple of two: (value, destinations).",
    ),
    (
        lambda: ONE_DEVICE.batch_reduce("sum", [(per_replica(1.0), "cpu:0", 1)]),
        ArgumentError,
        "Element 0 of value_destination_pairs is a tuple of 3. Each must be a tuple of two: (value, destinations).",
    ),
    (
        lambda: ONE_DEVICE.reduce("max", per_replica(IndexedSlices(np.ones((1, 2)), np.array([0]))), "cpu:0"),
        ArgumentError,
        "MAX of IndexedSlices is not defined. Rows take SUM or MEAN; make them dense for MAX.",
    ),
    (
        lambda: ONE_DEVICE.reduce(
            "sum", per_replica(1.0), "cpu:0", options=CommunicationOptions(), experimental_hints=CommunicationOptions()
        ),
        CallError,
        "options and experimental_hints are two names of one argument. Give one of them.",
    ),
    (
        lambda: ONE_DEVICE.reduce("sum", per_replica(1.0), "cpu:0", options=3),
        ArgumentError,
        "options is 3. It takes a CommunicationOptions, or None.",
    ),
    (
        lambda: ONE_DEVICE.reduce("sum", per_replica(1.0), "cpu:0", CommunicationOptions(timeout_seconds=3)),
        ArgumentError,
        "timeout_seconds=3 cannot be honoured by the host executor, which runs this plan. Leave timeout_seconds out.",
    ),
    (
        lambda: ONE_DEVICE.reduce("sum", per_replica(1.0), "cpu:0", CommunicationOptions(implementation="nccl")),
        ArgumentError,
        "implementation=NCCL cannot be honoured by the host executor, which runs this plan. Leave implementation out.",
    ),
    (
        lambda: CommunicationOptions(bytes_per_pack=-1),
        ArgumentError,
        "bytes_per_pack is -1. It takes a whole number of bytes; 0 leaves packing to num_packs.",
    ),
    (
        lambda: CommunicationOptions(timeout_seconds=-1),
        ArgumentError,
        "timeout_seconds is -1. It takes a number of seconds above 0, or None for no limit.",
    ),
    (
        lambda: CommunicationOptions(implementation="bogus"),
        ArgumentError,
        'implementation is \'bogus\'. It takes "AUTO", "RING" or "NCCL".',
    ),
    (
        lambda: ONE_DEVICE.reduce("mean", per_replica(1.0, 2.0), "cpu:0", weights=[1]),
        ArgumentError,
        "weights has 1 number for 2 replicas. Give one for each replica.",
    ),
    (
        lambda: ONE_DEVICE.reduce("sum", per_replica(1.0, 2.0), "cpu:0", weights=[1, 2]),
        ArgumentError,
        "weights goes with MEAN and the op is SUM. Leave weights out, or multiply the values yourself.",
    ),
    (
        lambda: ONE_DEVICE.reduce("mean", per_replica(1.0, 2.0), "cpu:0", weights=[0, 0]),
        ArgumentError,
        "weights is [0, 0]. It takes a list, tuple or one-dimensional array of one finite number ≥ 0 "
        "per replica, not all of them 0.",
    ),
    (
        lambda: ONE_DEVICE.reduce("mean", per_replica(1.0, 2.0), "cpu:0", weights=[-1, float("nan")]),
        ArgumentError,
        "weights is [-1, nan]. It takes a list, tuple or one-dimensional array of one finite number ≥ 0 "
        "per replica, not all of them 0.",
    ),
    (
        lambda: ReductionToOneDevice(accumulation_fn=3),
        ArgumentError,
        "accumulation_fn is 3. It takes a function of the list of arrays, or None.",
    ),
    (
        lambda: ReductionToOneDevice(accumulation_fn=lambda a: a).reduce("sum", per_replica(1.0, 2.0), "cpu:0"),
        ArgumentError,
        "accumulation_fn returned a list. It must return one float64 (), like each array it got.",
    ),
    (
        lambda: ReductionToOneDevice(accumulation_fn=lambda _: np.zeros(3, F32)).reduce(
            "sum", per_replica(1.0, 2.0), "cpu:0"
        ),
        ArgumentError,
        "accumulation_fn returned float32 (3,). It must return one float64 (), like each array it got.",
    ),
    (
        lambda: ONE_DEVICE.gather(per_replica(1.0), "cpu:0", 0),
        ArgumentError,
        "gather got scalars, which have no axis to lie along. Reshape each to (1,).",
    ),
    (
        lambda: ONE_DEVICE.gather(per_replica(np.zeros(2)), "cpu:0", 5),
        ArgumentError,
        "gather got axis=5. It takes -1 to 0 for arrays of 1 axis.",
    ),
    (
        lambda: ONE_DEVICE.gather(per_replica(np.zeros(2)), "cpu:0", "x"),
        ArgumentError,
        "gather got axis='x'. It takes a whole number.",
    ),
    (
        lambda: ONE_DEVICE.broadcast(per_replica(1.0, 2.0), "cpu:0"),
        ArgumentError,
        "broadcast got a PerReplica. It takes one value; pick a component, such as values[0].",
    ),
    (
        lambda: ONE_DEVICE.broadcast("x", "cpu:0"),
        ArgumentError,
        "The value is 'x', which is no array of a loaded framework. A value is a PerReplica of arrays or of "
        "pytrees of arrays, or one array or IndexedSlices. A framework counts once it is imported.",
    ),
    (
        lambda: HIERARCHICAL.reduce("sum", per_replica({"a": np.ma.array([1, 2], mask=[0, 1])}), "cpu:0"),
        ArgumentError,
        "Replica 0 at ['a'] is a MaskedArray, which is no array of a loaded framework. A value is a "
        "PerReplica of arrays or of pytrees of arrays, or one array or IndexedSlices. A framework counts once"
        " it is imported.",
    ),
    (
        lambda: HierarchicalCopyAllReduce(accumulate="x"),
        ArgumentError,
        'accumulate is \'x\'. It takes "exact" (the default) or "native".',
    ),
    (
        lambda: HierarchicalCopyAllReduce(topology=3),
        ArgumentError,
        'topology is 3. It takes a treefold.Topology, the name of a known machine such as "dgx1_v100", the path of a '
        "topology file, or None.",
    ),
    (
        lambda: PerReplica([per_replica(1.0)]),
        ArgumentError,
        "PerReplica got a PerReplica. It takes a list or tuple with one value per replica.",
    ),
    (
        lambda: (
            per_replica(IndexedSlices(np.ones(2), np.ones(3)))
            and ONE_DEVICE.reduce("sum", per_replica(IndexedSlices(np.ones(2), np.ones(3))), "cpu:0")
        ),
        ArgumentError,
        "Replica 0 has IndexedSlices with indices float64 (3,). Indices must be int32 or int64, of one axis.",
    ),
    (
        lambda: ONE_DEVICE.reduce("sum", per_replica(IndexedSlices(np.ones((1, 2)), np.array(0))), "cpu:0"),
        ArgumentError,
        "Replica 0 has IndexedSlices with indices int64 (). Indices must be int32 or int64, of one axis.",
    ),
    (
        lambda: ONE_DEVICE.reduce(
            "sum", per_replica(IndexedSlices(np.ones((2, 2)), np.array([0, 7]), (2, 2)), np.ones((2, 2))), "cpu:0"
        ),
        ArgumentError,
        "Replica 0 has IndexedSlices with indices from 0 to 7. Its dense_shape allows 0 to 1.",
    ),
]


class TestArgumentMistakes:
    @pytest.mark.parametrize(("call", "kind", "sentence"), MISTAKES, ids=[sentence for *_, sentence in MISTAKES])
    def test_get_one_sentence_each(self, call, kind, sentence):
        with pytest.raises(kind, match=f"^{re.escape(sentence)}$") as caught:
            call()
        assert type(caught.value) is kind
