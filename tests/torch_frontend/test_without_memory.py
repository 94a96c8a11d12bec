"""Tensors for which PyTorch has allocated nothing, on its backend "treefold"."""

import pytest
from torch_ranks import refusals, run, zeros

SENTENCE = (
    "A tensor has no memory of its own: a transform of torch.func stands for it, or it is to be written and PyTorch "
    "has allocated nothing for its zeros. Call where it has memory, and give a copy of such zeros: tensor.clone()."
)


class TestZeros:
    def test_are_read(self):
        """Gradients of step functions are such zeros."""
        none, ones = [0.0] * 4, [1.0] * 4
        gathered = [none, ones], none + ones
        exchanged = [0, 0, 1, 1]
        assert run(zeros.known_zeros, 2) == [
            [*gathered, [1, 1], exchanged, none, [7.0] * 4],
            [*gathered, [1, 1], exchanged, none, none],
        ]


class TestRefusals:
    @pytest.mark.parametrize("what", ["zeros to write", "functionalize", "functionalize, view", "grad", "vmap"])
    def test_on_one_rank(self, what):
        assert run(refusals.refused, 2, what) == [
            ("ProcessGroupError", SENTENCE, 3),
            ("CallMismatchError", f"Rank 0 could not make this call: {SENTENCE} Nothing was done, on no rank.", 3),
        ]
