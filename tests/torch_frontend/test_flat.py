"""Flat tensors, cut into batches."""

import torch

from treefold.torch.flat import cut_apart


class TestCutApart:
    def test_copies_nothing_that_is_read_before_it_is_written(self):
        """One batch is read whole, then written."""
        memory = torch.arange(8.0)
        sources, end = [memory[:4], memory[4:]], memory[2:6]
        [[[*read, written]]] = cut_apart([sources], [end], 1 << 20)
        assert [one.data_ptr() for one in (*read, written)] == [one.data_ptr() for one in (*sources, end)]

    def test_copies_what_a_batch_would_overwrite_for_a_later_one(self):
        """Not what is written where it was read, nor what lies elsewhere."""
        memory = torch.arange(96.0)
        own, other, end = memory[:32], memory[32:64], memory[40:72]
        first, *later = cut_apart([[own, other, end]], [end], 300)
        assert later
        are_copies = [
            one.data_ptr() != given.data_ptr() for one, given in zip(first[0], (own, other, end, end), strict=True)
        ]
        assert are_copies == [False, True, False, False]
        end.zero_()
        assert torch.cat([first[0][1], *(batch[0][1] for batch in later)]).tolist() == list(range(32, 64))
