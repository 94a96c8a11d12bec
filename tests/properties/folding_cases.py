"""The cases of the properties: replicas, ops objects, packings and destinations, drawn by hypothesis.

``TREEFOLD_CASES`` is the number of examples of a property; a release runs ``full``.
"""

import os

import ml_dtypes  # noqa: F401 - teaches NumPy the name "bfloat16"
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from treefold import (
    AllReduceCrossDeviceOps,
    CommunicationOptions,
    HierarchicalCopyAllReduce,
    IndexedSlices,
    Mirrored,
    NcclAllReduce,
    PerReplica,
    ReductionToOneDevice,
)
from treefold.testing import mixed_values, special_values

_FULL = 10_000
_ASKED = os.environ.get("TREEFOLD_CASES", "60")
NUM_EXAMPLES = _FULL if _ASKED == "full" else int(_ASKED)

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
NUMBERS = (*FLOATS, *INTEGERS, *COMPLEX)
DTYPES = (*NUMBERS, "bool")
OPS = ("SUM", "MEAN", "MIN", "MAX", "PRODUCT")

#: Every op with every dtype that it has a meaning for.
OP_DTYPES = [
    (op, dtype)
    for op in OPS
    for dtype in DTYPES
    if not (op in {"MIN", "MAX"} and dtype in COMPLEX) and not (op not in {"MIN", "MAX"} and dtype == "bool")
]


def cases(share=1.0):
    """Return the settings of a property that gets ``share`` of the examples; one is run once for every parameter."""
    return settings(
        max_examples=max(1, round(NUM_EXAMPLES * share)),
        deadline=None,  # no test asserts a time
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


counts = st.integers(1, 17)
seeds = st.integers(0, 2**32 - 1)
shapes = st.one_of(
    st.sampled_from([(), (0,), (1,), (7,), (97,), (3, 0, 2), (5, 11), (2, 3, 5), (2, 1, 3, 2)]),
    st.lists(st.integers(0, 5), max_size=4).map(tuple),
)
accumulations = st.sampled_from(["exact", "native"])
op_dtypes = st.sampled_from(OP_DTYPES)


def largest(dtype):
    values = special_values(dtype)
    return np.array([max(float(value) for value in values if abs(float(value)) != np.inf)], dtype)


def replicas_of(seed, count, shape, dtype, *, is_finite=False):
    return [mixed_values(seed + replica, shape, dtype, is_finite=is_finite) for replica in range(count)]


@st.composite
def batches(draw, dtypes=DTYPES, max_leaves=6):
    """Draw a count of replicas and, for each value of a batch, its contributions."""
    count = draw(counts)
    kinds = draw(st.lists(st.tuples(st.sampled_from(dtypes), shapes), min_size=1, max_size=max_leaves))
    seed = draw(seeds)
    return [replicas_of(seed + 100 * i, count, shape, dtype) for i, (dtype, shape) in enumerate(kinds)]


num_packs = st.one_of(st.integers(0, 20), st.just("auto"))


@st.composite
def all_ops(draw, accumulate="exact"):
    """Draw an ops object: any class, any packing that its constructor takes."""
    kind = draw(st.sampled_from(["star", "rooted", "hierarchical", "nccl", "aggregating", "any"]))
    if kind == "star":
        return ReductionToOneDevice(accumulate=accumulate)
    if kind == "rooted":
        return ReductionToOneDevice(f"cpu:{draw(st.integers(0, 20))}", accumulate=accumulate)
    if kind == "hierarchical":
        return HierarchicalCopyAllReduce(draw(num_packs), accumulate=accumulate)
    if kind == "nccl":
        return NcclAllReduce(draw(num_packs), accumulate=accumulate)
    packs = 0 if kind == "aggregating" else draw(num_packs)
    algorithm = draw(st.sampled_from(["nccl", "hierarchical_copy"]))
    limits = draw(st.integers(0, 400)), draw(st.integers(0, 5))
    return AllReduceCrossDeviceOps(algorithm, packs, *limits, accumulate=accumulate)


options = st.one_of(st.none(), st.integers(0, 300).map(lambda nbytes: CommunicationOptions(bytes_per_pack=nbytes)))


@st.composite
def destinations(draw, count):
    """Draw a destination, in any form, for values on ``cpu:0`` to ``cpu:count-1``; with its devices."""
    devices = [f"cpu:{index}" for index in range(count)]
    chosen = draw(
        st.one_of(
            st.just(devices),
            st.permutations(devices),
            st.lists(st.sampled_from(devices), min_size=1, unique=True),
            st.lists(st.sampled_from([*devices, "cpu:23", "cpu:40"]), min_size=1, max_size=5),
        )
    )
    form = draw(st.sampled_from(["string", "array", "slices", "list", "tuple", "PerReplica", "Mirrored"]))
    array = np.zeros(2)
    return {
        "string": lambda: (chosen[0], chosen[:1]),
        "array": lambda: (array, ["cpu:0"]),
        "slices": lambda: (IndexedSlices(array, np.array([0, 1])), ["cpu:0"]),
        "list": lambda: (list(chosen), chosen),
        "tuple": lambda: (tuple(chosen), chosen),
        "PerReplica": lambda: (PerReplica([array] * len(chosen), chosen), chosen),
        "Mirrored": lambda: (Mirrored([array] * len(chosen), chosen), chosen),
    }[form]()
