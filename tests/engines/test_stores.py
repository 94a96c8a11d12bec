"""What ranks do with a store, on one that is a dictionary, and that fails when it is told to."""

import itertools
import threading
import time

import pytest

from treefold.engines.roster import StoreRoster
from treefold.engines.stores import asked
from treefold.errors import ConnectError


class Shelf:
    """A store of this process, with as much of PyTorch's interface as ranks use."""

    def __init__(self):
        self._values, self._lock = {}, threading.Lock()
        self.error = None

    def set(self, key, value):
        """Keep a value, or fail."""
        if self.error is not None:
            raise self.error
        self._values[key] = value

    def get(self, key):
        """Return a value."""
        return self._values[key]

    def check(self, keys):
        """Tell whether all are there."""
        return all(key in self._values for key in keys)

    def delete_key(self, key):
        """Forget a value."""
        return self._values.pop(key, None) is not None

    def compare_set(self, key, expected, desired):
        """Set a value if it is as expected, and return what it is then."""
        with self._lock:
            if self._values.get(key, "") == expected:
                self._values[key] = desired
            return self._values[key].encode()


@pytest.fixture
def shelf():
    """A store of this process."""
    return Shelf()


def connect(store, rank, size, seconds):
    """Return what all ranks say, or the error."""
    try:
        one = StoreRoster(store, rank, size, "job")
        return [
            one.exchange(f"{round_number} of {rank}".encode(), time.monotonic() + seconds) for round_number in (1, 2)
        ]
    except ConnectError as error:
        return error


class TestStoreRoster:
    def test_ranks_meet_whatever_each_has_tried_in_vain(self, shelf):
        """Rank r tries r times alone; then all try at once, and again."""
        told = {}

        def live(rank):
            for _ in range(rank):
                error = connect(shelf, rank, 3, 0.02)
                assert 0 in error.ranks
            tried.wait()
            told[rank] = [connect(shelf, rank, 3, 20) for _ in range(2)]

        tried = threading.Barrier(3)
        ranks = [threading.Thread(target=live, args=(rank,)) for rank in range(3)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(60)
        said = [[f"{number} of {rank}".encode() for rank in range(3)] for number in (1, 2)]
        assert told == {rank: [said, said] for rank in range(3)}

    @pytest.mark.parametrize("error", [RuntimeError("Broken pipe\nstack of C++"), OSError("Broken pipe")])
    def test_a_store_that_raises(self, shelf, error):
        """One sentence, without the stack."""
        shelf.error = error
        assert str(connect(shelf, 0, 2, 1)) == (
            "The group did not form: PyTorch's store has failed this rank: Broken pipe. Look at the network to whoever "
            "holds the store, usually rank 0 or torchrun, and at whether it still runs."
        )


class TestAsked:
    def test_a_store_that_does_not_answer(self):
        """The deadline holds, whatever the store does."""
        over = threading.Event()
        began = time.monotonic()
        with pytest.raises(
            ConnectError, match=r"PyTorch's store has failed this rank: it has not answered by the dead"
        ):
            asked(over.wait, began + 0.1)
        over.set()
        assert time.monotonic() - began < 5

    def test_another_error_is_not_the_stores(self):
        """It is raised as it is."""
        with pytest.raises(ZeroDivisionError):
            asked(lambda: next(itertools.count()) / 0, time.monotonic() + 5)
