"""The queue of a process group's calls, without a group."""

import threading

import pytest

from treefold.errors import GroupError
from treefold.torch.c10d.calls import CallQueue


@pytest.fixture
def left():
    return []


@pytest.fixture
def calls(left):
    """A queue with a thread that ends with the test."""
    queue = CallQueue(left.append)
    yield queue
    queue.end()
    queue.join()


class TestAdd:
    def test_makes_a_call_here_if_it_is_waited_for(self, calls):
        call = calls.add(threading.get_ident, is_waited_for=True)
        assert (call.is_completed(), call.result()) == (True, threading.get_ident())

    def test_makes_others_in_one_thread_and_in_order(self, calls):
        """Also those that are waited for, behind one that is not."""
        go, made = threading.Event(), []
        first = calls.add(go.wait, is_waited_for=False)
        others = [calls.add(lambda n=n: made.append((n, threading.get_ident())), is_waited_for=n % 2) for n in range(9)]
        assert not any(call.is_completed() for call in (first, *others))
        go.set()
        for call in others:
            call.wait()
        assert [number for number, _ in made] == list(range(9))
        assert len({thread for _, thread in made} - {threading.get_ident()}) == 1

    def test_makes_a_call_here_again_when_the_others_are_over(self, calls):
        calls.add(lambda: None, is_waited_for=False).wait()
        assert any(
            calls.add(threading.get_ident, is_waited_for=True).result() == threading.get_ident() for _ in range(99)
        )

    def test_refuses_a_call_within_a_call_of_the_same_thread(self, calls):
        """As a signal handler would make it: it would wait for itself."""
        with pytest.raises(GroupError, match=r"^This group is in the middle of a collective, which another thread or"):
            calls.add(lambda: calls.add(lambda: None, is_waited_for=True), is_waited_for=True)
        assert calls.add(lambda: 7, is_waited_for=True).result() == 7

    def test_raises_what_a_call_raises(self, calls, left):
        with pytest.raises(ZeroDivisionError):
            calls.add(lambda: 1 / 0, is_waited_for=True)
        call = calls.add(lambda: 1 / 0, is_waited_for=False)
        with pytest.raises(ZeroDivisionError):
            call.wait()
        assert (call.is_success(), type(call.exception())) == (False, ZeroDivisionError)
        assert calls.add(lambda: 7, is_waited_for=False).wait()
        assert left == []


class TestEnd:
    def test_lets_calls_end_that_wait(self, calls):
        made = []
        for number in range(3):
            calls.add(lambda n=number: made.append(n), is_waited_for=False)
        calls.end()
        assert made == [0, 1, 2]

    def test_leaves_nobody_waiting(self, calls):
        calls.add(lambda: None, is_waited_for=False)
        calls.end()
        calls.join()
        assert calls.add(lambda: 7, is_waited_for=False).result() == 7
