"""Code of PyTorch's users, for type checkers: lines marked ``# error`` are mistakes, and no other line is one."""

from typing import Any, assert_type

import torch

import treefold
from treefold.torch import all_reduce_, all_reduce_coalesced, average_models, broadcast_coalesced, reduce_add_coalesced


class Net(torch.nn.Module):
    """A user's model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)


def tensors() -> list[torch.Tensor]:
    """Return one tensor per replica; replica r brings 2**r."""
    return [torch.full((3,), 2.0**r) for r in range(2)]


def right_averages() -> None:
    """Models give a model of their class, state dicts a state dict."""
    assert_type(average_models([Net(), Net()]), Net)
    assert_type(average_models((Net(), Net()), weights=[600, 400]).layer, torch.nn.Linear)
    assert_type(average_models(Net() for _ in range(3)), Net)
    assert_type(average_models([Net().state_dict(), Net().state_dict()]), dict[str, Any])


def right_reductions() -> None:
    """Tensors in, tensors out; in place, what was passed."""
    assert_type(treefold.all_reduce(tensors(), "mean"), list[torch.Tensor])
    assert_type(all_reduce_(tensors(), "mean"), list[torch.Tensor])
    assert_type(all_reduce_(([tensors()[0]], [tensors()[1]])), tuple[list[torch.Tensor], list[torch.Tensor]])
    assert_type(reduce_add_coalesced([tensors(), tensors()]), tuple[torch.Tensor, ...])
    assert_type(all_reduce_coalesced([tensors(), tensors()], op="max"), list[tuple[torch.Tensor, ...]])
    assert_type(broadcast_coalesced(tensors(), ["cpu", "cpu"]), list[tuple[torch.Tensor, ...]])


def wrong() -> None:
    """Ops, and what is no model."""
    all_reduce_(tensors(), "men")  # error
    all_reduce_coalesced([tensors()], op="total")  # error
    reduce_add_coalesced(tensors()[0], op="average_")  # error
    average_models(Net())  # error
    average_models([Net(), Net().state_dict()])  # error
    average_models([1.0, 2.0])  # error
