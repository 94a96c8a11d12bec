"""The lock that orders the threads of one rank."""

import threading

import pytest

from treefold.errors import GroupError
from treefold.torch.turns import Turns


class TestTurns:
    def test_come_in_order(self):
        """First come, first served; Python's own locks promise nothing."""
        turns, order = Turns(), []

        def pass_through(number):
            with turns:
                order.append(number)

        threads = [threading.Thread(target=pass_through, args=(number,)) for number in range(20)]
        with turns:
            for count, thread in enumerate(threads, start=2):
                thread.start()
                while len(turns._queue) < count:  # until it waits
                    threading.Event().wait(0.001)
        for thread in threads:
            thread.join()
        assert order == list(range(20))

    def test_are_not_taken_twice(self):
        """A signal handler that calls in the middle of a call of its own thread would wait for ever."""
        turns = Turns()
        with (
            turns,
            pytest.raises(GroupError, match=r"^This group is in the middle of a collective, which another"),
            turns,
        ):
            pass
        with turns:
            assert len(turns._queue) == 1

    def test_an_interrupted_thread_makes_room(self):
        """Ctrl-C while a thread waits: whoever stands behind it goes on."""
        turns, passed = Turns(), threading.Event()

        class Interrupted:
            def acquire(self):
                raise KeyboardInterrupt

        def pass_through():
            with turns:
                passed.set()

        behind = threading.Thread(target=pass_through)
        with turns:
            entry = (0, Interrupted())
            turns._queue.append(entry)
            behind.start()
            while len(turns._queue) < 3:
                threading.Event().wait(0.001)
            with pytest.raises(KeyboardInterrupt):
                turns._wait(entry)
        behind.join(10)
        assert passed.is_set()
