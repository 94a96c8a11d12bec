"""NCCL between real GPUs. `make test-gpu` runs these."""

import pytest

from treefold import CommunicationOptions, NcclAllReduce, PerReplica, ReduceOp

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch reports no GPU here"),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs two GPUs"),
    pytest.mark.skipif(not hasattr(torch._C, "_nccl_all_reduce"), reason="this build of PyTorch has no NCCL"),
]
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "complex64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", list(ReduceOp))
def test_every_op_and_dtype(op, dtype):
    if dtype == "complex64" and op in {ReduceOp.MIN, ReduceOp.MAX}:
        pytest.skip("complex numbers have no order")
    count = torch.cuda.device_count()
    numbers = [2**replica % 3 + 1 for replica in range(count)]
    kind = getattr(torch, dtype)
    value = PerReplica([torch.full((1001,), n, dtype=kind, device=f"cuda:{r}") for r, n in enumerate(numbers)])
    made = NcclAllReduce().reduce(op, value, value, CommunicationOptions(timeout_seconds=60))
    assert made.plan.executor == "nccl"
    host = PerReplica([torch.full((1001,), n, dtype=kind) for n in numbers])
    [expected, *_] = NcclAllReduce().reduce(op, host, host)
    for replica, tensor in enumerate(made):
        assert tensor.device == torch.device("cuda", replica)
        torch.testing.assert_close(tensor.cpu(), expected, rtol=0 if op is not ReduceOp.MEAN else 1e-2, atol=0)


def test_in_place_on_side_streams():
    count = torch.cuda.device_count()
    streams = [torch.cuda.Stream(device) for device in range(count)]
    for stream in streams:
        torch.cuda.set_stream(stream)
    try:
        tensors = [torch.zeros(1 << 22, device=f"cuda:{r}") for r in range(count)]
        for replica, tensor in enumerate(tensors):
            with torch.cuda.device(replica):
                torch.cuda._sleep(50_000_000)
            tensor.add_(2.0**replica)
        value = PerReplica(tensors)
        NcclAllReduce(num_packs=2).reduce("sum", value, value, out=value)
        assert all(bool((tensor == 2.0**count - 1).all()) for tensor in tensors)
    finally:
        for device in range(count):
            torch.cuda.set_stream(torch.cuda.default_stream(device))
