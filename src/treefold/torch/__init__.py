"""What PyTorch users write: reductions in place, ``torch.cuda.comm``'s coalesced functions, and averages of models.

``import treefold`` does not load this; ``import treefold.torch`` loads PyTorch. Tensors also go into treefold's own
classes and short forms as they are.
"""

from treefold.torch.average import average_models
from treefold.torch.coalesced import all_reduce_coalesced, broadcast_coalesced, reduce_add_coalesced
from treefold.torch.in_place import all_reduce_

__all__ = ["all_reduce_", "all_reduce_coalesced", "average_models", "broadcast_coalesced", "reduce_add_coalesced"]
