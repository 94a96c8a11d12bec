"""``exact_reduce_scatter`` on ranks."""

import numpy as np
import torch
from torch import distributed

import treefold
from treefold.torch import exact_reduce_scatter

_OPS = {"sum": distributed.ReduceOp.SUM, "mean": distributed.ReduceOp.AVG}


def contribution(rank, size, dtype):
    """Return hostile numbers of a rank: large ones that cancel, and small ones that remain."""
    random = np.random.default_rng(rank)
    numbers = random.normal(size=size * 300) * 10.0 ** random.integers(-3, 4, size * 300)
    numbers[::7] = [3e4, -3e4, 2.0**-20][rank % 3]
    return torch.from_numpy(numbers).to(getattr(torch, dtype))


def same(rank, size, dtype, op, is_async):
    """Return whether a rank's part is that of one process, and whether the input stayed."""
    inputs = [contribution(each, size, dtype) for each in range(size)]
    given, output = inputs[rank].clone(), torch.full((3, 100), 7.0, dtype=inputs[0].dtype)
    work = exact_reduce_scatter(output, given, _OPS[op], async_op=is_async)
    if is_async:
        assert not work.is_completed()
        assert work.wait()
        assert work.is_completed()
    whole = treefold.reduce(inputs, op).view(size, 3, 100)[rank]
    return torch.equal(output.view(torch.uint8), whole.view(torch.uint8)), torch.equal(given, inputs[rank])


def on_gpus(rank, size, dtype, op):
    """Return what ``same`` does where the tensors lie on a GPU each, whose kernels an interpreter runs."""
    from pretended import pretended_gpus  # noqa: PLC0415 - of the tests' folder

    from treefold.execution.cuda import one_device  # noqa: PLC0415 - imports Triton's kernels when they run

    batches, make = [], one_device.make_batches
    one_device.make_batches = lambda *given: batches.append(1) or make(*given)
    inputs = [contribution(each, size, dtype) for each in range(size)]
    expected = treefold.reduce(inputs, op).view(size, 3, 100)[rank]
    output = torch.full((3, 100), 7.0, dtype=inputs[0].dtype)
    with pretended_gpus(1):
        exact_reduce_scatter(output, inputs[rank], _OPS[op])
    return torch.equal(output.view(torch.uint8), expected.view(torch.uint8)), len(batches)


def refused(rank, size, kind):
    given, output, op = torch.zeros(4 * size), torch.zeros(4), distributed.ReduceOp.SUM
    if kind == "op":
        op = distributed.ReduceOp.MAX
    elif kind == "size":
        output = torch.zeros(5)
    else:
        given = torch.zeros(4 * size, 2).t()[0]
    exact_reduce_scatter(output, given, op)
