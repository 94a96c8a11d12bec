"""How long a store is waited for, and what it has to say to a rank that waits for something else."""

import itertools
import signal
import threading
import time

import pytest
from shelves import Shelf, together

from treefold.engines.roster import StoreRoster
from treefold.engines.stores import asked
from treefold.errors import ConnectError


@pytest.fixture
def shelf():
    """A store of this process."""
    return Shelf()


class TestWatching:
    """A rank that waits for others of its host, elsewhere than in the store."""

    @pytest.fixture
    def pair(self, shelf):
        """Two ranks that have exchanged words."""
        rosters = [StoreRoster(shelf, rank, 2, "job") for rank in range(2)]
        together(lambda rank: rosters[rank].exchange(b"", time.monotonic() + 20), 2)
        return rosters

    def test_what_another_rank_says_right_then(self, pair):
        """It goes first: what this rank has found follows from it."""
        teller = threading.Timer(0.05, pair[1].give_up, [MemoryError("no memory")])
        sentence = "The group did not form: rank 1 has given up: MemoryError no memory."
        teller.start()
        with pytest.raises(ConnectError) as failed, pair[0].watching(time.monotonic() + 30):
            raise ConnectError.gone(1)
        teller.join(20)
        assert (str(failed.value), failed.value.ranks) == (sentence, (1,))

    def test_nothing_that_another_rank_says(self, pair):
        """It raises what it has found."""
        with pytest.raises(ConnectError, match="rank 1 has gone"), pair[0].watching(time.monotonic() + 30):
            raise ConnectError.gone(1)

    def test_a_store_that_fails(self, pair, shelf):
        """It is to blame, and no rank."""
        shelf.error = OSError("Broken pipe")
        with (
            pytest.raises(ConnectError, match="PyTorch's store has failed this rank") as failed,
            pair[0].watching(time.monotonic() + 30),
        ):
            raise ConnectError.gone(1)
        assert failed.value.ranks == ()


class TestAsked:
    def test_a_store_that_does_not_answer(self):
        """The deadline holds, whatever the store does."""
        over = threading.Event()
        began = time.monotonic()
        with pytest.raises(
            ConnectError, match=r"PyTorch's store has failed this rank: it has not answered by the dead"
        ):
            asked(lambda _: over.wait(), began + 0.1)
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
        try:
            with pytest.raises(OwnError):
                asked(lambda is_over: is_over.wait(20), time.monotonic() + 20)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    def test_another_error_is_not_the_stores(self):
        """It is raised as it is."""
        with pytest.raises(ZeroDivisionError):
            asked(lambda _: next(itertools.count()) / 0, time.monotonic() + 5)
