"""Communication hooks for ``DistributedDataParallel``."""

# DDP inspects the annotations of a hook, so they must not be strings.
from typing import Any

import torch
from torch import distributed

from treefold.errors import ProcessGroupError
from treefold.group import Group
from treefold.torch.c10d.process_group import TreefoldProcessGroup


def all_reduce_hook(group: Group, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Make the gradients of a bucket their mean over the ranks of a ``Group``, exact and rounded once.

    Use it for DDP over gloo, also between hosts: ``ddp.register_comm_hook(treefold.connect(dist.group.WORLD),
    all_reduce_hook)``. DDP's own process group then carries the first parameters only.

    Args:
        group: A ``Group`` of all ranks of the model.
        bucket: The bucket that DDP passes.

    Returns:
        A future that is done, with the bucket's gradients.

    Raises:
        TreefoldError: A subclass from ``treefold.errors``, on all ranks.

    """
    gradients = bucket.buffer()
    group.all_reduce(gradients, "mean", out=gradients)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done


def mean_hook(group: Any, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Make the gradients of a bucket their mean over the ranks, exact and rounded once.

    Register it with ``ddp.register_comm_hook(group, mean_hook)``. Without a hook, DDP divides every rank's gradients by
    the number of ranks and sums the quotients: each quotient is rounded, and small ones of 16 bits become zero.

    Args:
        group: The process group of the model, of the backend ``"treefold"``; None: the default group.
        bucket: The bucket that DDP passes.

    Returns:
        A future of the bucket's gradients.

    Raises:
        TreefoldError: A subclass from ``treefold.errors``, on all ranks.

    """
    work = distributed.all_reduce(bucket.buffer(), op=distributed.ReduceOp.AVG, group=group, async_op=True)
    return work.get_future().then(lambda reduced: reduced.value()[0])


def shared_mean_hook(group: Any, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Give DDP the mean of ``mean_hook``, in memory that the ranks share: it is copied into the gradients only once.

    DDP reads that memory, and no one may write it. The bucket itself keeps this rank's gradients. Optimizers that run
    in DDP's hooks read the bucket, and so need ``mean_hook``.

    Args:
        group: The process group of the model, of the backend ``"treefold"``; None: the default group.
        bucket: The bucket that DDP passes.

    Returns:
        A future of the mean.

    Raises:
        ProcessGroupError: The process group has another backend.
        TreefoldError: A subclass from ``treefold.errors``, on all ranks.

    """
    group = distributed.group.WORLD if group is None else group
    if not isinstance(group, TreefoldProcessGroup):
        raise ProcessGroupError(
            'shared_mean_hook needs a process group of the backend "treefold", and this one is of '
            f'"{distributed.get_backend(group)}". Make it with init_process_group("treefold") or '
            'new_group(backend="treefold").'
        )
    return group.shared_mean(bucket.buffer()).get_future()
