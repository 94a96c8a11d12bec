"""Flat tensors, cut into batches."""

import itertools

import pytest
import torch

from treefold.errors import ProcessGroupError
from treefold.torch.c10d.flat import Flat
from treefold.torch.c10d.reductions import cut_apart


class TestTarget:
    def test_refuses_elements_that_share_memory(self):
        memory = torch.zeros(64)
        for shape in itertools.product((1, 2, 3), repeat=3):
            for strides in itertools.product((0, 1, 2, 3, 5), repeat=3):
                tensor = memory.as_strided(shape, strides)
                if torch.arange(64).as_strided(shape, strides).unique().numel() < tensor.numel():
                    with pytest.raises(ProcessGroupError, match=r"^A tensor of shape .* is to be written, and several"):
                        Flat().target(tensor)

    def test_takes_views_that_do_not(self):
        memory, ends = torch.zeros(3, 4, 5), [slice(None), slice(1, 3), slice(0, 3, 2), slice(2, 3)]
        for order in itertools.permutations(range(3)):
            for cuts in itertools.product(ends, repeat=3):
                tensor = memory[cuts].permute(order)
                assert Flat().target(tensor).numel() == tensor.numel()

    def test_takes_empty_tensors_of_any_strides(self):
        assert Flat().target(torch.zeros(1).as_strided((0, 3), (0, 0))).numel() == 0


class TestCutApart:
    def test_copies_nothing_that_is_read_before_it_is_written(self):
        """One batch is read whole, then written."""
        memory = torch.arange(8.0)
        sources, end = [memory[:4], memory[4:]], memory[2:6]
        [[[*read, written]]] = cut_apart([sources], [end], 1 << 20)
        assert [one.data_ptr() for one in (*read, written)] == [one.data_ptr() for one in (*sources, end)]

    def test_copies_what_a_batch_would_overwrite_for_a_later_one(self):
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

    def test_copies_what_begins_where_another_tensor_is_written(self):
        """Only its own end may begin there."""
        memory = torch.arange(192.0)
        ends = [memory[:64], memory[64:96]]
        batches = cut_apart([[memory[96:160]], [memory[:32]]], ends, 300)
        ends[0].zero_()
        given = torch.cat([source for batch in batches for source, _ in batch])
        assert given.tolist() == [*range(96, 160), *range(32)]
