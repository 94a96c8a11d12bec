"""Tensors of subclasses on PyTorch's backend "treefold", between real processes."""

import pytest
from torch_ranks import run, subclasses


class TestSubclasses:
    @pytest.mark.parametrize("kind", ["functional", "user's"])
    def test_are_the_tensors_behind_them(self, kind):
        """Of a functional collective, which may still be under way."""
        gathered = [[1, 1], [2, 2]]
        for rank, answer in enumerate(run(subclasses.taken, 2, kind)):
            assert answer == [[3, 3], [2, 2], [2, 2], gathered, [1, 2], [3], [2 - rank] * 2]

    @pytest.mark.parametrize("call", ["broadcast", "all_reduce", "all_gather"])
    def test_that_are_made_of_others_are_refused(self, call):
        """Their own memory is not there; the other rank is told."""
        sentence = (
            "A DTensor is made of other tensors, which a collective does not see. Give these: of a DTensor, "
            "tensor.to_local() or tensor.full_tensor()."
        )
        assert run(subclasses.refused, 2, call) == [
            ("ProcessGroupError", sentence, 3),
            ("CallMismatchError", f"Rank 0 could not make this call: {sentence} Nothing was done, on no rank.", 3),
        ]
