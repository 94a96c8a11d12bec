"""On a real GPU: the fused fold and the streams, against the host's bits. `make test-gpu` runs these."""

import numpy as np
import pytest
import wide_reference

import treefold
from treefold import HierarchicalCopyAllReduce, PerReplica, ReduceOp, ReductionToOneDevice
from treefold.backends import numpy_fold
from treefold.dtypes import REDUCIBLE
from treefold.execution.gpus import CHOICES, VARIABLE
from treefold.fold import Fold
from treefold.testing import assert_same_bits, owned
from treefold.testing.inputs import mixed_values

torch = pytest.importorskip("torch")
BACKEND = pytest.importorskip("treefold.backends.torch").TorchBackend()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch reports no GPU here"),
]
SIZES = (0, 1, 1023, 1024, 100_001)


@pytest.fixture(autouse=True)
def _cuda_executor(monkeypatch):
    """Let plans on GPUs run on their own executor."""
    monkeypatch.setenv("TREEFOLD_GPU_EXECUTOR", "cuda")


def on_host(tensor):
    """Return the contents of a tensor as NumPy sees them."""
    return BACKEND.host_view(tensor.cpu())


def both(dtype, size, count=4, *, is_owned=True):
    """Return replicas on the host and the same ones on the GPU, all tensors."""
    make = owned if is_owned else mixed_values
    host = [BACKEND.from_host(np.array(make(r, (size,), dtype)), "cpu:0") for r in range(count)]
    return host, [tensor.cuda() for tensor in host]


@pytest.mark.parametrize("dtype", REDUCIBLE)
@pytest.mark.parametrize("op", list(ReduceOp))
@pytest.mark.parametrize("executor", CHOICES)
def test_gives_the_bits_of_the_host(executor, op, dtype, monkeypatch):
    """By the kernels; of sums accumulated wide by PyTorch's operations. Every dtype, op and size; also in place.

    7 divides nothing evenly.
    """
    monkeypatch.setenv(VARIABLE, executor)
    if dtype.startswith("complex") and op in {ReduceOp.MIN, ReduceOp.MAX}:
        pytest.skip("complex numbers have no order")
    ops = ReductionToOneDevice()
    for size in SIZES:
        host, gpu = both(dtype, size, count=7, is_owned=False)
        value, fold = PerReplica(gpu, ["gpu:0"] * 7), Fold(op)
        made = ops.reduce(op, value, value)
        parts, result = [on_host(tensor) for tensor in host], fold.result_dtype(dtype)
        reference = numpy_fold.fold_block if executor == "cuda" else wide_reference.fold_block
        want = reference(parts, fold, dtype=dtype, divisor=7, result=result)
        assert made.plan.executor == executor
        for tensor in made.values:
            assert tensor.is_cuda
            assert_same_bits(on_host(tensor), want)
        if made.values[0].dtype is gpu[0].dtype:
            ops.reduce(op, value, value, out=value)
            for tensor in gpu:
                assert_same_bits(on_host(tensor), on_host(made.values[0]))


def test_more_than_two_to_the_31_bytes():
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GiB of GPU memory")
    tensors = [torch.full(((1 << 31) + 5,), 2**r, dtype=torch.uint8, device="cuda") for r in range(3)]
    for tensor in tensors:
        tensor[1 << 30 :] *= 3
        tensor[-2:] *= 5
    value = PerReplica(tensors, ["gpu:0"] * 3)
    ReductionToOneDevice().reduce("sum", value, value, out=value)
    for tensor in tensors:
        assert bool((tensor[: 1 << 30] == 7).all())
        assert bool((tensor[1 << 30 : -2] == 21).all())
        assert bool((tensor[-2:] == 105).all())


class TestStreams:
    def test_the_callers_stream_is_honoured(self):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            tensors = [torch.zeros(1 << 24, device="cuda") for _ in range(4)]
            torch.cuda._sleep(50_000_000)
            for replica, tensor in enumerate(tensors):
                tensor.add_(2.0**replica)
            value = PerReplica(tensors, ["gpu:0"] * 4)
            (result, *_) = ReductionToOneDevice().reduce("sum", value, value).values
            after = result * 2
        stream.synchronize()
        assert bool((after == 30).all())

    def test_two_streams_at_once(self):
        """Tables of addresses are shared between streams only once they are there."""
        streams = [torch.cuda.Stream() for _ in range(2)]
        tensors = [torch.full((1 << 20,), 2.0**r, device="cuda") for r in range(4)]
        torch.cuda.synchronize()
        value = PerReplica(tensors, ["gpu:0"] * 4)
        results = []
        for _ in range(50):
            for stream in streams:
                with torch.cuda.stream(stream):
                    results.append(ReductionToOneDevice().reduce("sum", value, value)[0])
        torch.cuda.synchronize()
        assert all(bool((result == 15).all()) for result in results)

    def test_a_graph_takes_in_place_reductions_after_a_warm_up(self):
        tensors = [torch.ones(5000, device="cuda") for _ in range(3)]
        value, ops = PerReplica(tensors, ["gpu:0"] * 3), ReductionToOneDevice()
        ops.reduce("sum", value, value, out=value)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ops.reduce("sum", value, value, out=value)
        for replica, tensor in enumerate(tensors):
            tensor.fill_(2.0**replica)
        graph.replay()
        torch.cuda.synchronize()
        assert all(bool((tensor == 7).all()) for tensor in tensors)

    def test_a_graph_finds_its_table_whatever_was_reduced_since(self):
        """Tables of other tensors are forgotten, those of graphs are not."""
        tensors = [torch.ones(5000, device="cuda") for _ in range(3)]
        value, ops = PerReplica(tensors, ["gpu:0"] * 3), ReductionToOneDevice()
        ops.reduce("sum", value, value, out=value)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ops.reduce("sum", value, value, out=value)
        others = [[torch.full((5000,), 2.0**r, device="cuda") for r in range(3)] for _ in range(200)]
        for column in others:
            other = PerReplica(column, ["gpu:0"] * 3)
            ops.reduce("sum", other, other, out=other)
        for replica, tensor in enumerate(tensors):
            tensor.fill_(2.0**replica)
        graph.replay()
        torch.cuda.synchronize()
        assert all(bool((tensor == 7).all()) for column in (tensors, *others) for tensor in column)

    def test_each_stream_has_its_own_tensors(self):
        """Two queues that run side by side; each reduction comes after what its own stream was given."""
        streams = [torch.cuda.Stream() for _ in range(2)]
        columns = [[torch.zeros(1 << 20, device="cuda") for _ in range(4)] for _ in streams]
        torch.cuda.synchronize()
        for number, (stream, column) in enumerate(zip(streams, columns, strict=True)):
            with torch.cuda.stream(stream):
                for turn in range(1, 20):
                    torch.cuda._sleep(1_000_000)
                    for replica, tensor in enumerate(column):
                        tensor.fill_(turn * 2.0 ** (replica + number))
                    value = PerReplica(column, ["gpu:0"] * 4)
                    ReductionToOneDevice().reduce("sum", value, value, out=value)
        torch.cuda.synchronize()
        assert all(bool((tensor == 19 * 15).all()) for tensor in columns[0])
        assert all(bool((tensor == 19 * 30).all()) for tensor in columns[1])

    @pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
    def test_a_graph_without_a_warm_up_is_refused(self):
        tensors = [torch.ones(777, device="cuda") for _ in range(3)]
        value = PerReplica(tensors, ["gpu:0"] * 3)
        with (
            pytest.raises(RuntimeError, match="Reduce the same tensors in place once before"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            ReductionToOneDevice().reduce("sum", value, value, out=value)


@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize("ops", [ReductionToOneDevice(), HierarchicalCopyAllReduce(num_packs=2)])
def test_the_host_is_a_device_like_any_other(ops, is_pinned):
    size = 30_000_001
    host = torch.full((size,), 1.0, pin_memory=is_pinned)
    value = PerReplica([host, torch.full((size,), 2.0, device="cuda")], ["cpu:0", "gpu:0"])
    result = ops.reduce("sum", value, value)
    assert [tensor.device.type for tensor in result.values] == ["cpu", "cuda"]
    assert all(bool((tensor == 3).all()) for tensor in result.values)


def test_links_are_proved():
    table = treefold.verify_links(use_cache=False)
    assert {(link.source, link.target) for link in table.links} >= {("gpu:0", "cpu:0"), ("cpu:0", "gpu:0")}
    assert all(link.is_proved and link.bytes_per_s > 1e9 for link in table.links)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_several_gpus():
    treefold.verify_links()
    count = torch.cuda.device_count()
    tensors = [torch.full((10_000_019,), 2.0**r, device=f"cuda:{r}") for r in range(count)]
    value = PerReplica(tensors)
    for ops in (ReductionToOneDevice(), HierarchicalCopyAllReduce("auto")):
        for tensor in ops.reduce("sum", value, value).values:
            assert bool((tensor == 2.0**count - 1).all())


@pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="this build of PyTorch has no NCCL")
def test_exact_reduce_scatter_over_nccl_of_one_rank():
    from treefold.torch import exact_reduce_scatter  # noqa: PLC0415 - imports PyTorch

    torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        given = torch.arange(3001.0, device="cuda")
        output = torch.zeros_like(given)
        exact_reduce_scatter(output, given)
        assert torch.equal(output, given)
        exact_reduce_scatter(output, -given, torch.distributed.ReduceOp.AVG, async_op=True).wait()
        assert torch.equal(output, -given)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("words", [1 << 64, (577 << 64) // 3])
def test_partial_sums_are_those_of_the_host(dtype, words):
    from treefold.backends.numpy_partial import Factor  # noqa: PLC0415 - as above
    from treefold.partials.partial_sum import PartialSum, Pieces  # noqa: PLC0415
    from treefold.torch.training.device_sum import DeviceSum  # noqa: PLC0415

    host, replicas = both(dtype, 100_001, 8, is_owned=False)
    expected, total = PartialSum(dtype, 100_001), DeviceSum(dtype, 100_001, torch.device("cuda"))
    for row, replica in zip(host, replicas, strict=True):
        expected.add(Pieces.of([BACKEND.host_view(row)]), Factor(words))
        total.add(replica, Factor(words))
    assert total.on_host().finish(8 * words).tobytes() == expected.finish(8 * words).tobytes()
