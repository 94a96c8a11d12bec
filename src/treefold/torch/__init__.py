"""For PyTorch users: gradients averaged exactly, in place or by DDP's hooks, and averages of models.

>>> import torch
>>> import treefold.torch
>>> gradients = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])]
>>> treefold.torch.all_reduce_(gradients, "mean")[0]
tensor([2., 4.])

``import treefold`` does not load this module; ``import treefold.torch`` loads PyTorch, and registers the backend
``"treefold"`` if PyTorch has process groups. Tensors also go into treefold's own classes and short forms.
"""

from treefold.errors import FrameworkError

try:
    from torch import distributed
except ModuleNotFoundError as error:
    if error.name != "torch":  # torch is installed, and a module that it needs is not
        raise
    raise FrameworkError.missing(__name__, "PyTorch", "torch", "2.5") from None

from treefold.torch.average import average_models
from treefold.torch.clipping import clip_grad_norm_
from treefold.torch.coalesced import all_reduce_, all_reduce_coalesced, broadcast_coalesced, reduce_add_coalesced
from treefold.torch.training import MicroBatches

if distributed.is_available():
    from treefold.torch.c10d.process_group import register
    from treefold.torch.hooks import all_reduce_hook, mean_hook, shared_mean_hook
    from treefold.torch.reduce_scatter import exact_reduce_scatter

    register()

__all__ = [
    "MicroBatches",
    "all_reduce_",
    "all_reduce_coalesced",
    "average_models",
    "broadcast_coalesced",
    "clip_grad_norm_",
    "reduce_add_coalesced",
]
if distributed.is_available():
    __all__ += [
        "all_reduce_hook",
        "exact_reduce_scatter",
        "mean_hook",
        "shared_mean_hook",
    ]  # some builds of PyTorch have no process groups


def __dir__() -> list[str]:
    return __all__
