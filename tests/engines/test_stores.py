"""What ranks do with a store, until each of them has the words of all."""

import os
import signal
import threading
import time

import pytest
from shelves import Shelf, connect, together
from torch import distributed

from treefold.engines.stores import asked
from treefold.errors import ConnectError
from treefold.group.rosters import StoreRoster

_SAID = [[f"{step} of {rank}".encode() for rank in range(3)] for step in (1, 2)]


@pytest.fixture
def shelf():
    """A store of this process."""
    return Shelf()


class TestStoreRoster:
    @pytest.mark.parametrize("store", [Shelf, distributed.HashStore])
    def test_ranks_meet_again_and_again(self, store):
        """Each attempt has words of its own."""
        found = store()
        told = together(lambda rank: [connect(found, rank, 3, 20) for _ in range(20)])
        assert told == [[_SAID] * 20] * 3

    def test_ranks_that_do_not_come_are_named_at_the_deadline(self, shelf):
        """All that are there hear it when the first has waited as long as it may."""
        began = time.monotonic()
        first, second = together(lambda rank: connect(shelf, rank, 3, (0.3, 60)[rank]), 2)
        assert (first.ranks, second.ranks) == ((2,), (2,))
        assert str(second).startswith(f"The group did not form: rank 0 has given up: {str(first).rstrip('.')}")
        assert time.monotonic() - began < 20

    def test_ranks_meet_after_some_have_tried_in_vain(self, shelf):
        """However often each of them has."""
        for rank in (0, 1, 1):
            assert 2 in connect(shelf, rank, 3, 0.02).ranks
        assert together(lambda rank: connect(shelf, rank, 3, 20)) == [_SAID] * 3

    def test_a_rank_that_gives_up_says_why(self, shelf):
        """Those that wait for it, in whatever step, hear its reason at once."""

        def go_on(rank):
            roster = StoreRoster(shelf, rank, 2, "job")
            roster.exchange(b"1", time.monotonic() + 20)
            if rank == 0:
                return roster.give_up(MemoryError("no memory"))
            with pytest.raises(ConnectError) as caught:
                roster.exchange(b"2", time.monotonic() + 20)
            return str(caught.value), caught.value.ranks

        told = "The group did not form: rank 0 has given up: MemoryError no memory.", (0,)
        assert together(go_on, 2) == [None, told]

    def test_ctrl_c_is_told(self, shelf):
        """It is heard at once, and no thread is left."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        told, first = [], StoreRoster(shelf, 0, 3, "job")
        other = threading.Thread(target=lambda: told.append(connect(shelf, 1, 3, 20)))
        other.start()
        with pytest.raises(KeyboardInterrupt) as interrupt:
            first.exchange(b"first", time.monotonic() + 60)
        first.give_up(interrupt.value)
        other.join(20)
        assert [str(one) for one in told] == ["The group did not form: rank 0 has given up: KeyboardInterrupt."]
        assert "treefold-side" not in {thread.name for thread in threading.enumerate()}

    @pytest.mark.parametrize("dead", [{2}, {0, 1}, {1, 2}, {0, 1, 2}], ids=str)
    def test_new_processes_take_the_place_of_ranks_that_were_killed_while_they_waited(self, shelf, dead):
        """All meet without an error, whoever comes first, and whatever the dead have left there."""
        for rank in dead:
            shelf.set(f"job/0/here/{rank}", b"")

        def live(rank):
            time.sleep(0.1 * rank)
            return connect(shelf, rank, 3, 20)

        assert together(live) == [_SAID] * 3

    def test_a_rank_beyond_their_number_is_refused(self, shelf):
        """Its number is wrong, or the number of all."""
        with pytest.raises(ConnectError, match=r"^The group did not form: rank 2 is not one of 2 ranks, which count"):
            StoreRoster(shelf, 2, 2, "job")

    def test_a_store_that_lacks_a_method(self):
        """One sentence says what ranks need."""

        class Lacking(distributed.Store):
            def check(self, keys):
                return not keys

        assert str(connect(Lacking(), 0, 2, 1)) == (
            "The group did not form: the store lacks set, get or check, by which ranks find each other. Use PyTorch's "
            "TCPStore, FileStore or HashStore, or write what is missing."
        )

    @pytest.mark.parametrize("error", [RuntimeError("Broken pipe\nstack of C++"), LookupError("Broken pipe")])
    def test_a_store_that_raises(self, shelf, error):
        """One sentence, without the stack, whatever class of exceptions a user's own store has."""
        shelf.error = error
        assert str(connect(shelf, 0, 2, 1)) == (
            f"The group did not form: PyTorch's store has failed this rank: {type(error).__name__}: Broken pipe. Look "
            "at the network to whoever holds the store, usually rank 0 or torchrun, and at whether it still runs."
        )


class TestAsked:
    def test_a_store_that_does_not_answer(self):
        """The deadline holds, whatever the store does."""
        over, began = threading.Event(), time.monotonic()
        with pytest.raises(ConnectError, match="PyTorch's store has failed this rank: it has not answered by the dead"):
            asked(over.wait, began + 0.1)
        over.set()
        assert time.monotonic() - began < 5

    def test_a_users_own_timeout(self):
        """It is the user's, though it looks like what a wait that is too long raises."""

        class OwnError(TimeoutError):
            pass

        def raise_own(*_):
            raise OwnError

        previous = signal.signal(signal.SIGALRM, raise_own)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        over = threading.Event()
        try:
            with pytest.raises(OwnError):
                asked(over.wait, time.monotonic() + 20)
        finally:
            over.set()
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
