"""A message that belongs to no call arrives on a group's channel: an error in words, on all ranks, and nothing torn."""

import random
import threading

import fake_groups
import numpy as np
import pytest

from treefold.errors import GroupError, PeerLostError
from treefold.group.transport import failures

_SENTENCE = "Another rank sent what does not belong to this call. Install the same treefold on all ranks"


def garble(frame, kind):
    """Return bytes in place of a frame."""
    draw = random.Random(kind)  # noqa: S311 - a test's choice
    return {
        "nothing": b"",
        "noise": draw.randbytes(len(frame)),
        "another magic": b"nope" + frame[4:],
        "another round": frame[:4] + (99).to_bytes(8, "little") + frame[12:],
    }[kind]


class TestGarbage:
    @pytest.mark.parametrize("kind", ["nothing", "noise", "another magic", "another round"])
    def test_in_place_of_a_frame(self, monkeypatch, kind):
        """The receiver reports it. The sender, like the others, hears which rank has left the group."""
        odd = []

        def maybe_garbled(frame, sequence):
            right = frame.encode(sequence)
            sent = garble(right, kind) if threading.get_ident() in odd else right
            return np.frombuffer(sent, np.uint8).copy()

        monkeypatch.setattr(failures, "frame_bytes", maybe_garbled)

        def body(group):
            group.barrier()
            odd.extend([threading.get_ident()] * (group.rank == 1))
            out = np.full(3000, -1.0)
            with pytest.raises(GroupError) as caught:
                group.all_reduce(np.full(3000, 2.0**group.rank), out=out)
            assert (out == -1).all()
            return caught.type, str(caught.value)

        _, told = fake_groups.run(3, body, is_prompt=True)
        assert any(sentence.startswith(_SENTENCE) for _, sentence in (told[0], told[2]))
        assert all(sentence.startswith(_SENTENCE) or error is PeerLostError for error, sentence in told)
