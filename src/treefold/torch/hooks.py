"""Communication hooks for ``DistributedDataParallel``."""

# DDP looks at the annotations of a hook, so they are no strings here.
from typing import Any

import torch
from torch import distributed

from treefold.errors import ProcessGroupError
from treefold.group import Group
from treefold.torch.c10d.process_group import TreefoldProcessGroup


def all_reduce_hook(group: Group, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Make the gradients of a bucket their mean over the ranks of a ``Group``, exact and rounded once.

    For DDP over gloo, also between hosts: ``ddp.register_comm_hook(treefold.connect(dist.group.WORLD),
    all_reduce_hook)``. DDP's own process group carries nothing but the first parameters then.

    Raises:
        TreefoldError: one of its kinds, on all ranks.

    """
    gradients = bucket.buffer()
    group.all_reduce(gradients, "mean", out=gradients)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done


def mean_hook(group: Any, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Make the gradients of a bucket their mean over the ranks, exact and rounded once.

    Without a hook DDP divides every rank's gradients by their number and sums the quotients: each quotient is rounded,
    and small ones of 16 bits become zero. Register it as ``ddp.register_comm_hook(group, mean_hook)``; ``group`` is the
    process group of the model, of the backend ``"treefold"``, and None is the default group.

    Raises:
        TreefoldError: one of its kinds, on all ranks.

    """
    work = distributed.all_reduce(bucket.buffer(), op=distributed.ReduceOp.AVG, group=group, async_op=True)
    return work.get_future().then(lambda reduced: reduced.value()[0])


def shared_mean_hook(group: Any, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Give DDP the mean of ``mean_hook``, in memory that the ranks share: it is copied into the gradients only once.

    DDP reads it and does not write it; nothing else may write it either. The bucket itself keeps this rank's gradients,
    so optimizers that run in DDP's hooks, which read the bucket, need ``mean_hook``.

    Raises:
        ProcessGroupError: the process group has another backend.
        TreefoldError: one of its kinds, on all ranks.

    """
    group = distributed.group.WORLD if group is None else group
    if not isinstance(group, TreefoldProcessGroup):
        raise ProcessGroupError(
            'shared_mean_hook needs a process group of the backend "treefold", and this one is of '
            f'"{distributed.get_backend(group)}". Make it with init_process_group("treefold") or '
            'new_group(backend="treefold").'
        )
    return group.shared_mean(bucket.buffer()).get_future()
