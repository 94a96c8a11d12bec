"""The lock that orders the threads of one rank."""

import gc
import random
import signal
import threading
import time
import weakref

import pytest

from treefold.errors import GroupError
from treefold.torch.turns import Turns

PATIENCE_S = 20


def pass_through(turns, note=lambda: None):
    """Take a turn, do something, and release it."""
    turns.check()
    turn = turns.take()
    try:
        note()
    finally:
        turn.release()


def start(turns, note):
    """Start a thread that waits for its turn, and return it when it stands in the queue."""
    last, thread = turns._last, threading.Thread(target=pass_through, args=(turns, note), daemon=True)
    thread.start()
    while turns._last is last:
        time.sleep(0.001)
    return thread


def can_pass(turns):
    """Tell whether this thread and another one get a turn."""
    pass_through(turns)
    thread = threading.Thread(target=pass_through, args=(turns,), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return not thread.is_alive()


class TestTurns:
    def test_come_in_order(self):
        """First come, first served; Python's own locks promise nothing."""
        turns, order = Turns(), []
        turn = turns.take()
        threads = [start(turns, lambda number=number: order.append(number)) for number in range(20)]
        assert order == []
        turn.release()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert order == list(range(20))

    def test_are_not_taken_twice(self):
        """A signal handler that calls in the middle of a call of its own thread would wait for ever."""
        turns = Turns()
        turn = turns.take()
        for _ in range(2):
            with pytest.raises(GroupError, match=r"^This group is in the middle of a collective, which another"):
                turns.check()
        turn.release()
        assert can_pass(turns)

    def test_are_not_kept(self):
        """Turns that are over are freed."""
        turns, locks = Turns(), []
        for _ in range(5):
            turn = turns.take()
            locks.append(weakref.ref(turn.lock))
            turn.release()
        del turn
        gc.collect()
        assert sum(lock() is not None for lock in locks) == 1


@pytest.fixture
def alarm():
    """SIGALRM raises KeyboardInterrupt."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


class TestInterrupts:
    def test_while_waiting(self, alarm):
        """Whoever stands behind the interrupted thread goes on, and not before whoever stands before it is done."""
        turns, order = Turns(), []
        is_over = threading.Event()
        first = start(turns, is_over.wait)
        alarm(0.05)
        with pytest.raises(KeyboardInterrupt):
            turns.take()
        behind = start(turns, lambda: order.append(is_over.is_set()))
        behind.join(0.05)
        assert order == []
        is_over.set()
        for thread in (first, behind):
            thread.join(PATIENCE_S)
        assert order == [True]

    def test_at_any_moment(self, alarm):
        """Before, within and after a turn: no turn is left taken."""
        turns, interrupts = Turns(), 0
        chance = random.Random(7)  # noqa: S311 - moments, not secrets
        for _ in range(300):
            try:
                alarm(chance.uniform(0.00001, 0.0003))
                while True:
                    pass_through(turns)
            except KeyboardInterrupt:
                interrupts += 1
            assert can_pass(turns)
        assert interrupts == 300

    def test_with_another_thread(self, alarm):
        """Which takes turns all the time, so that the interrupted thread often waits."""
        turns, is_over = Turns(), threading.Event()
        chance = random.Random(8)  # noqa: S311 - moments, not secrets

        def busy():
            while not is_over.is_set():
                pass_through(turns)

        other = threading.Thread(target=busy, daemon=True)
        other.start()
        for _ in range(200):
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the loop is what is interrupted
                alarm(chance.uniform(0.00001, 0.001))
                while True:
                    pass_through(turns)
        is_over.set()
        other.join(PATIENCE_S)
        assert not other.is_alive()
        assert can_pass(turns)
