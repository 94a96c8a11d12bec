"""Functions under ``torch.compile`` that call ``torch.distributed``."""

import torch
from torch import distributed

import treefold.torch
from torch_ranks import training
from torch_ranks.collectives import own

#: PyTorch's compiler refuses buckets that are smaller than its first one.
ONE_BUCKET = {"bucket_cap_mb": 25}


def train(rank, size, hook):
    return training.train(rank, size, ONE_BUCKET, hook, is_compiled=True)


def both(rank, size):
    """Return the results of every collective outside and within a compiled function."""
    answers = {}
    for name, function in _FUNCTIONS.items():
        torch.compiler.reset()
        compiled = torch.compile(function, backend="eager")
        answers[name] = [call(own(rank, 3), rank, size).tolist() for call in (function, compiled, compiled)]
    return answers


def in_one_process(rank, size):
    """Return the results of treefold's functions and ops within a compiled function."""
    ops = treefold.ReductionToOneDevice()
    tensors = own(rank, 2), 2 * own(rank, 2)
    return [
        torch.compile(function, backend="eager")(*tensors).tolist()
        for function in (
            lambda one, other: treefold.torch.reduce_add_coalesced([[one], [other]])[0],
            lambda one, other: treefold.torch.all_reduce_coalesced([[one], [other]])[1][0],
            lambda one, _: treefold.torch.broadcast_coalesced([one], ["cpu", "cpu"])[1][0],
            lambda one, other: treefold.torch.all_reduce_([one.clone(), other.clone()])[1],
            lambda one, other: treefold.all_reduce([one * 2, other * 2])[1] / 2,
            lambda one, other: treefold.reduce([one, other], "mean") * 2,
            lambda one, _: treefold.broadcast(one * 1, ["cpu:0", "cpu:1"])[1],
            lambda one, _: ops.broadcast(one * 1, ["cpu:0", "cpu:1"]).values[1],
            lambda one, other: ops.gather(treefold.PerReplica([one, other]), "cpu:0", 0).values[0][1:3],
            lambda one, other: ops.reduce("max", treefold.PerReplica([one * 2, other]), "cpu:0").values[0],
        )
    ]


def _in_place(collective):
    def function(value, rank, size):
        doubled = value * 2
        collective(doubled, rank, size)
        return doubled + 1

    return function


def _into(collective, count=1):
    def function(value, rank, size):
        outputs = [torch.zeros(3) for _ in range(count)]
        collective(outputs, value * 2, rank, size)
        return torch.stack(outputs) + 1

    return function


def _exchange(outputs, value, rank, size):
    peer = 1 - rank
    sent, received = (
        distributed.P2POp(distributed.isend, value, peer),
        distributed.P2POp(distributed.irecv, outputs[0], peer),
    )
    for work in distributed.batch_isend_irecv([sent, received]):
        work.wait()


def _send(outputs, value, rank, size):
    if rank == 0:
        distributed.send(value, 1)
    else:
        distributed.recv(outputs[0], 0)


_FUNCTIONS = {
    "all_reduce": _in_place(lambda one, *_: distributed.all_reduce(one)),
    "all_reduce, async": _in_place(lambda one, *_: distributed.all_reduce(one, async_op=True).wait()),
    "all_reduce_coalesced": _in_place(lambda one, *_: distributed.all_reduce_coalesced([one])),
    "reduce": _in_place(lambda one, *_: distributed.reduce(one, 1)),
    "broadcast": _in_place(lambda one, *_: distributed.broadcast(one, 1)),
    "barrier": _in_place(lambda *_: distributed.barrier()),
    "all_gather": _into(lambda outputs, value, *_: distributed.all_gather(outputs, value), 2),
    "gather": _into(
        lambda outputs, value, rank, _: distributed.gather(value, None if rank else outputs, 0),
        2,
    ),
    "scatter": _into(
        lambda outputs, value, rank, size: distributed.scatter(outputs[0], None if rank else [value] * size, 0)
    ),
    "reduce_scatter": _into(
        lambda outputs, value, _, size: distributed.reduce_scatter(outputs[0], [value] * size),
    ),
    "reduce_scatter_tensor": _into(
        lambda outputs, value, *_: distributed.reduce_scatter_tensor(outputs[0], torch.cat([value, value]))
    ),
    "all_to_all": _into(lambda outputs, value, _, size: distributed.all_to_all(outputs, [value] * size), 2),
    "all_to_all_single": _into(
        lambda outputs, value, *_: distributed.all_to_all_single(outputs[0][:2], value[:2]),
    ),
    "batch_isend_irecv": _into(_exchange),
    "send": _into(_send),
}
