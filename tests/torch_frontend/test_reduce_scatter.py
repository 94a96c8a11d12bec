"""``Group.reduce_scatter``, between real processes."""

import numpy as np
import pytest
from torch_ranks import Raised, collectives, run

from treefold.group.collectives import move
from treefold.group.transport.link import ByteStream, GroupLink


class TestReduceScatter:
    @pytest.mark.parametrize(("shape", "axis"), [((6,), 0), ((3, 4), 0), ((4, 3), 1), ((2, 6), -1), ((9000, 2), 0)])
    def test_gives_each_rank_its_part(self, shape, axis):
        total = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) * 7
        assert run(collectives.connected, 3, shape, axis) == [part.tolist() for part in np.split(total, 3, axis)]

    def test_takes_no_other_lengths(self):
        sentence = (
            "reduce_scatter cannot cut an array of shape (4,) along axis 0 into 3 equal parts. It takes one of the "
            "array's axes, of a length that 3 divides; pad the array, or name another axis."
        )
        errors = run(collectives.connected, 3, (4,), 0)
        assert Raised("ArgumentError", sentence) in errors
        assert all(sentence in error.text for error in errors)


class Recorded:
    """A link that writes down what it is asked to move."""

    size, result_bytes = 2, 8

    def __init__(self):
        self.calls = []

    parts = GroupLink.parts

    def place(self, _kind, stream, *, description):
        self.calls.append((*stream, description))


class TestMove:
    def test_goes_in_parts(self):
        link = Recorded()
        move(link, ByteStream(18, [(6, 1000, 4)], [(0, 2000, 18)]), "gather", "18 bytes", root=1)
        assert [call[:3] for call in link.calls] == [
            (8, [(6, 1000, 2)], [(0, 2000, 8)]),
            (8, [(0, 1002, 2)], [(0, 2008, 8)]),
            (2, [], [(0, 2016, 2)]),
        ]
        assert {call[3] for call in link.calls} == {"gather with root 1 of 18 bytes"}

    def test_of_nothing_meets_once(self):
        link = Recorded()
        move(link, ByteStream(1, [], []), "gather", "nothing")
        assert [call[:3] for call in link.calls] == [(1, [], [])]
