"""The exchange of ranks through a store, until each of them has the words of all."""

import subprocess
import sys
import textwrap
import threading
import time

import pytest
from torch import distributed

from treefold.engines.stores import asked
from treefold.errors import ConnectError
from treefold.group.bootstrap.rank_sources import StoreBootstrap

_SAID = [[f"{step} of {rank}".encode() for rank in range(3)] for step in (1, 2)]


class Shelf:
    """A store of this process, with as much of PyTorch's interface as ranks use."""

    def __init__(self):
        self._values = {}
        self.error = None

    def set(self, key, value):
        if self.error is not None:
            raise self.error
        self._values[key] = value.encode() if isinstance(value, str) else value

    def get(self, key):
        return self._values[key]

    def check(self, keys):
        return all(key in self._values for key in keys)


def connect(store, rank, size, seconds):
    """Return what all ranks say in two steps, or the error."""
    one = StoreBootstrap(store, rank, size, "job")
    try:
        return [one.exchange(f"{step} of {rank}".encode(), time.monotonic() + seconds) for step in (1, 2)]
    except ConnectError as error:
        one.give_up(error)
        return error


def together(body, size=3):
    """Return what a function of a rank returns, on some ranks at once."""
    told = {}
    ranks = [threading.Thread(target=lambda rank=rank: told.update({rank: body(rank)})) for rank in range(size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    return [told[rank] for rank in range(size)]


@pytest.fixture
def shelf():
    return Shelf()


class TestStoreRoster:
    @pytest.mark.parametrize("store", [Shelf, distributed.HashStore])
    def test_ranks_meet_again_and_again(self, store):
        found = store()
        told = together(lambda rank: [connect(found, rank, 3, 20) for _ in range(20)])
        assert told == [[_SAID] * 20] * 3

    def test_ranks_that_do_not_come_are_named_at_the_deadline(self, shelf):
        began = time.monotonic()
        first, second = together(lambda rank: connect(shelf, rank, 3, (0.3, 60)[rank]), 2)
        assert (first.ranks, second.ranks) == ((2,), (2,))
        assert str(second).startswith(f"The group did not form: rank 0 has given up: {str(first).rstrip('.')}")
        assert time.monotonic() - began < 20

    def test_a_rank_that_gives_up_says_why(self, shelf):
        def go_on(rank):
            bootstrap = StoreBootstrap(shelf, rank, 2, "job")
            bootstrap.exchange(b"1", time.monotonic() + 20)
            if rank == 0:
                return bootstrap.give_up(MemoryError("no memory"))
            with pytest.raises(ConnectError) as caught:
                bootstrap.exchange(b"2", time.monotonic() + 20)
            return str(caught.value), caught.value.ranks

        told = "The group did not form: rank 0 has given up: MemoryError no memory.", (0,)
        assert together(go_on, 2) == [None, told]

    @pytest.mark.parametrize("error", [RuntimeError("Broken pipe\nstack of C++"), LookupError("Broken pipe")])
    def test_a_store_that_raises(self, shelf, error):
        shelf.error = error
        assert str(connect(shelf, 0, 2, 1)) == (
            f"The group did not form: PyTorch's store has failed this rank: {type(error).__name__}: Broken pipe. Look "
            "at the network to whoever holds the store, usually rank 0 or torchrun, and at whether it still runs."
        )


class TestAsked:
    def test_a_store_that_does_not_answer(self):
        over, began = threading.Event(), time.monotonic()
        with pytest.raises(ConnectError, match="PyTorch's store has failed this rank: it has not answered by the dead"):
            asked(over.wait, began + 0.1)
        over.set()
        assert time.monotonic() - began < 5


class TestStartAside:
    def test_a_process_that_ends_waits_for_what_a_side_thread_is_the_last_to_hold(self):
        # As gloo's group, whose destructor takes a while and must not return to an interpreter that ends.
        program = """
            import threading
            import time
            from treefold.engines.stores import start_aside

            class Held:
                def __del__(self):
                    time.sleep(0.5)
                    print("ended", threading.current_thread().name, flush=True)

            def begin(go):
                held = Held()
                return start_aside(lambda: go.wait() and held and None)

            go = threading.Event()
            answer = begin(go)
            start_aside(lambda: None).result()  # which forgets others only if they have ended
            go.set()
            answer.result()
        """
        command = [sys.executable, "-c", textwrap.dedent(program)]
        assert subprocess.check_output(command, timeout=60) == b"ended treefold-side\n"  # noqa: S603 - the program above
