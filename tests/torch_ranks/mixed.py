"""Bodies of ranks of a group with another backend beside treefold, for tensors that are not on the CPU.

There is no GPU here: the other device is PyTorch's ``meta``, and its backend writes down its calls.
"""

import torch
from torch import distributed

_asked = []


class Recorder(distributed.ProcessGroup):
    """Another backend: it does nothing, and is done at once."""

    def getBackendName(self):  # noqa: N802 - PyTorch's name
        return "recorder"

    def __getattribute__(self, name):
        if name not in _CALLS:
            return super().__getattribute__(name)

        def call(*arguments):
            first = arguments[0][0]
            _asked.append((name, (first[0] if isinstance(first, list) else first).device.type))
            future = torch.futures.Future()
            future.set_result(arguments[0])
            return torch._C._distributed_c10d._create_work_from_future(future)

        return call


_CALLS = ("allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "send", "recv")


distributed.Backend.register_backend("recorder", lambda *ranks: Recorder(*ranks[1:3]), devices=["meta"])


def both(rank, size):
    """Call with tensors on both devices; return what the CPU's hold, and what the other backend was asked."""
    one = torch.full((2,), 2.0**rank)
    other = torch.empty(2, device="meta")
    work = distributed.all_reduce(other, async_op=True)
    work.wait()
    distributed.all_reduce(one)
    distributed.broadcast(other, src=0)
    distributed.all_gather([torch.empty_like(other) for _ in range(size)], other)
    distributed.reduce_scatter(torch.empty_like(other), [other] * size)
    distributed.send(other, dst=1 - rank)
    distributed.recv(other, src=1 - rank)
    part = distributed.new_group([0, 1], backend="cpu:treefold,meta:recorder")
    distributed.all_reduce(other, group=part)
    distributed.all_reduce(one, group=part)
    distributed.barrier()
    return one.tolist(), _asked


def nowhere(rank, size):
    """Call with a tensor on a device that no backend of the string has."""
    del rank, size
    distributed.all_reduce(torch.empty(2, device="meta"))
