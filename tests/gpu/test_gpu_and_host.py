"""On a real GPU: several replicas on it, and replicas in host memory, in one call. `make test-gpu` runs these."""

import numpy as np
import pytest

from treefold import HierarchicalCopyAllReduce, PerReplica, ReduceOp, ReductionToOneDevice
from treefold.testing import assert_same_bits, owned, owned_sum

torch = pytest.importorskip("torch")
BACKEND = pytest.importorskip("treefold.backends.torch").TorchBackend()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch reports no GPU here"),
]
PLACES = (
    ["gpu:0", "cpu:0"],
    ["gpu:0", "gpu:0", "cpu:0"],
    ["cpu:0", "gpu:0", "cpu:1", "gpu:0", "gpu:0"],
)
OPS = (
    ReductionToOneDevice(),
    ReductionToOneDevice("gpu:0"),
    HierarchicalCopyAllReduce(num_packs=1),
    HierarchicalCopyAllReduce(num_packs=3),
)


@pytest.fixture(autouse=True)
def _cuda_executor(monkeypatch):
    """Let plans on GPUs run on their own executor."""
    monkeypatch.setenv("TREEFOLD_GPU_EXECUTOR", "cuda")


def placed(array, place, *, is_pinned=False):
    """Return a tensor with an array's contents on one of treefold's devices."""
    tensor = BACKEND.from_host(np.array(array), "cpu:0")
    if place.startswith("gpu"):
        return tensor.cuda()
    return tensor.pin_memory() if is_pinned else tensor


def on_host(tensor):
    """Return the contents of a tensor as NumPy sees them."""
    return BACKEND.host_view(tensor.cpu())


def replicas(places, shape, dtype="float32", **how):
    """Return a value with replicas that name themselves."""
    tensors = [placed(owned(replica, shape, dtype), place, **how) for replica, place in enumerate(places)]
    return PerReplica(tensors, places)


def kinds(places):
    """Return where PyTorch says that tensors on these devices are."""
    return ["cuda" if place.startswith("gpu") else "cpu" for place in places]


@pytest.mark.parametrize("places", PLACES, ids="+".join)
@pytest.mark.parametrize("ops", OPS, ids=repr)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "int64", "complex64"])
def test_sums_name_every_replica(ops, places, dtype):
    for shape in ((0,), (1,), (3, 1001), (3_000_001,)):
        value = replicas(places, shape, dtype)
        made = ops.reduce("sum", value, value)
        assert made.plan.executor == "cuda"
        assert [tensor.device.type for tensor in made.values] == kinds(places)
        for tensor in made.values:
            assert_same_bits(on_host(tensor), owned_sum(len(places), shape, dtype))


@pytest.mark.parametrize("op", list(ReduceOp))
def test_every_op(op):
    """The values are such that no order of folding rounds."""
    places = PLACES[1]
    arrays = [owned(replica, (2000,)) for replica in range(3)]
    value, host = replicas(places, (2000,)), PerReplica(arrays)
    expected = ReductionToOneDevice().reduce(op, host, "cpu:0").values[0]
    for ops in OPS:
        for tensor in ops.reduce(op, value, value).values:
            np.testing.assert_allclose(on_host(tensor), expected, rtol=2e-7)


@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize("ops", OPS, ids=repr)
def test_batches_in_place(ops, is_pinned):
    places = PLACES[2]
    forms = [((7, 300), "float32"), ((0,), "float32"), ((100_001,), "bfloat16"), ((), "int32"), ((64,), "float32")]
    values = [replicas(places, shape, dtype, is_pinned=is_pinned) for shape, dtype in forms]
    ops.batch_reduce("sum", [(value, value) for value in values], out=values)
    for (shape, dtype), value in zip(forms, values, strict=True):
        for tensor in value.values:
            assert_same_bits(on_host(tensor), owned_sum(len(places), shape, dtype))


def test_results_go_where_they_are_asked_for():
    value = replicas(PLACES[1], (1000,))
    for destination, kind in (("gpu:0", "cuda"), ("cpu:0", "cpu")):
        (tensor,) = ReductionToOneDevice().reduce("sum", value, destination).values
        assert tensor.device.type == kind
        assert_same_bits(on_host(tensor), owned_sum(3, (1000,)))


@pytest.mark.parametrize("ops", OPS, ids=repr)
def test_the_callers_side_stream_is_honoured(ops):
    """Earlier work of the stream is waited for, and later work comes after the call; twenty times in a row."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        on_gpu = torch.zeros(5_000_001, device="cuda")
        on_host = torch.full((5_000_001,), 2.0, pin_memory=True)
        value = PerReplica([on_gpu, on_host], ["gpu:0", "cpu:0"])
        for turn in range(20):
            torch.cuda._sleep(5_000_000)
            on_gpu.fill_(turn)
            result = ops.reduce("sum", value, value)
            on_gpu.fill_(-1)  # the contribution was read before
            after = result.values[0] * 2
            assert bool((result.values[1] == turn + 2).all())
            assert bool((after == 2 * turn + 4).all())


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_graph_of_the_gpu_is_refused():
    value = replicas(PLACES[0], (10,))
    torch.cuda.synchronize()
    with (
        pytest.raises(RuntimeError, match=r"^A CUDA graph of one GPU is being captured, and this plan works on"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        ReductionToOneDevice().reduce("sum", value, value)
