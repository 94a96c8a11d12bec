"""What ranks do with a store."""

import itertools
import json
import os
import random
import re
import signal
import threading
import time

import pytest
from shelves import Shelf, Slow, connect, die_behind_first_words, together
from torch import distributed

from treefold.engines.roster import StoreRoster
from treefold.errors import ConnectError

_ROUNDS = 400 if os.environ.get("TREEFOLD_CASES") == "full" else 20


@pytest.fixture
def shelf():
    """A store of this process."""
    return Shelf()


def twice(store, rank, kind, delays):
    """Connect, which rank 2 refuses to, and connect again; return the error of the first, and what all say then."""
    time.sleep(delays[0])
    if kind == "a rank that does not fit":
        first = connect(store, rank, 2 if rank == 2 else 3, 20)
    else:
        one, first = StoreRoster(store, rank, 3, "job"), None
        one.exchange(b"1", time.monotonic() + 20)
        try:
            if rank == 2:
                raise ConnectError.rank_too_high(rank, 3)
            one.exchange(b"2", time.monotonic() + 20)
        except ConnectError as error:
            first = error
            one.give_up(error)
    time.sleep(delays[1])
    return first, connect(store, rank, 3, 20)


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

    def test_a_new_process_of_a_rank(self, shelf):
        """It waits for the others, and does not take what they once said to the process before it."""
        ranks = [threading.Thread(target=connect, args=(shelf, rank, 2, 20)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(60)
        assert connect(shelf, 1, 2, 0.1).ranks == (0,)

    def test_a_process_that_died_behind_its_first_words(self, shelf):
        """Its successor comes while another rank is stalled: all that are there meet it, without an error."""
        die_behind_first_words(shelf, 2, 3)

        def live(rank):
            time.sleep((0, 0, 0.2)[rank])
            return connect(Slow(shelf, 0.5, "words 0") if rank == 1 else shelf, rank, 3, 20)

        said = [[f"{number} of {rank}".encode() for rank in range(3)] for number in (1, 2)]
        assert together(live) == [said] * 3

    def test_a_new_process_at_any_time(self):
        """All others hear that they wait for a process that is gone, or none does; and then all meet."""
        draw = random.Random("a new process")  # noqa: S311 - a test's choice
        said = [[f"{step} of {rank}".encode() for rank in range(3)] for step in (1, 2)]
        for number in range(_ROUNDS):
            store = distributed.HashStore()
            die_behind_first_words(store, 2, 3)
            delays = [draw.choice([0, 0.01, 0.03, 0.05]) for _ in range(3)]

            def live(rank):
                time.sleep(delays[rank])  # noqa: B023 - called at once
                own = Slow(store, delays[rank - 2] / 4, "words 0") if rank < 2 else store  # noqa: B023
                first = connect(own, rank, 3, 20)
                is_refused = isinstance(first, ConnectError)
                return str(first) if is_refused else "", connect(own, rank, 3, 20) if is_refused else first

            told = together(live)
            assert [end for _, end in told] == [said] * 3, (number, delays)
            assert len({first for first, _ in told[:2]}) == 1, (number, delays)

    @pytest.mark.parametrize("kind", ["a rank that does not fit", "an error after all have come"])
    def test_a_reason_is_heard_once(self, kind):
        """However ranks that try again at once, and others that come late, meet."""
        draw, store = random.Random(kind), distributed.HashStore()  # noqa: S311 - a test's choice
        for number in range(_ROUNDS):
            delays = [[draw.choice([0, 0, 0.01, 0.03]) for _ in range(2)] for _ in range(3)]
            told = together(lambda rank: twice(store, rank, kind, delays[rank]))  # noqa: B023 - called at once
            assert {type(error) for error, _ in told} == {ConnectError}, number
            assert len({str(error) for error, _ in told}) == 1, number
            said = [[f"{step} of {rank}".encode() for rank in range(3)] for step in (1, 2)]
            assert [second for _, second in told] == [said] * 3, number

    def test_after_ctrl_c(self, shelf):
        """Nothing of the first attempt is left: no thread, and no words that others could meet. They still wait."""
        told = []
        other = threading.Thread(target=lambda: told.append(connect(shelf, 1, 2, 20)))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        first = StoreRoster(shelf, 0, 2, "job")
        with pytest.raises(KeyboardInterrupt) as interrupt:
            first.exchange(b"first", time.monotonic() + 60)
        first.give_up(interrupt.value)
        other.start()
        time.sleep(0.3)
        assert told == []
        told.append(connect(shelf, 0, 2, 20))
        other.join(60)
        said = [[f"{number} of {rank}".encode() for rank in range(2)] for number in (1, 2)]
        assert told == [said, said]
        assert "treefold-side" not in {thread.name for thread in threading.enumerate()}

    def test_a_rank_that_has_given_up(self, shelf):
        """It is not taken for one that never came."""
        first = threading.Thread(target=connect, args=(shelf, 0, 3, 0.2))
        last = threading.Timer(0.4, connect, (shelf, 2, 3, 0.5))
        for one in (first, last):
            one.start()
        error = connect(shelf, 1, 3, 0.7)
        last.join(60)
        assert error.ranks == (0,)
        assert str(error) == (
            "Rank 0 has given up connecting before all had come. Look at what was raised there, and connect again; if "
            "nothing else was, give connect a larger connect_timeout_seconds on all ranks."
        )

    def test_why_a_rank_has_given_up(self, shelf):
        """Those that wait for it in a later round hear its reason at once."""
        told = []
        rosters = [StoreRoster(shelf, rank, 2, "job") for rank in range(2)]

        def go_on():
            rosters[1].exchange(b"1", time.monotonic() + 20)
            try:
                rosters[1].exchange(b"2", time.monotonic() + 20)
            except ConnectError as error:
                told.append((str(error), error.ranks))

        other = threading.Thread(target=go_on)
        other.start()
        rosters[0].exchange(b"1", time.monotonic() + 20)
        rosters[0].give_up(MemoryError("no memory"))
        other.join(10)
        assert told == [("The group did not form: rank 0 has given up: MemoryError no memory.", (0,))]

    def test_a_rank_that_says_nothing_any_more(self):
        """It alone is named, though the others began seconds apart, and when the first has waited long enough."""
        store = distributed.HashStore()

        def go_on(rank):
            roster = StoreRoster(store, rank, 3, "job")
            roster.exchange(b"1", time.monotonic() + 20)
            began = time.monotonic()
            if rank == 2:
                return None
            with pytest.raises(ConnectError) as failed:
                roster.exchange(b"2", began + (0.2, 60)[rank])
            roster.give_up(failed.value)
            return failed.value.ranks, time.monotonic() - began

        first, second, _ = together(go_on)
        assert first[0] == second[0] == (2,)
        assert max(first[1], second[1]) < 20

    def test_a_rank_that_says_nothing_any_more_on_a_slow_store(self, shelf):
        """It alone is named, and not the store."""
        shelf.compare_set("job/0/tokens", "", json.dumps({5: "of the dead"}))
        errors = together(lambda rank: connect(Slow(shelf, 0.1), rank, 6, 2), 5)
        assert {error.ranks for error in errors} == {(5,)}, errors

    def test_a_deadline_that_passes_after_all_have_come(self, shelf):
        """Nobody who is there is blamed, by whomever the others hear of it."""

        def go_on(rank):
            roster = StoreRoster(shelf, rank, 3, "job")
            roster.exchange(b"1", time.monotonic() + 20)
            try:
                if rank == 2:
                    time.sleep(0.4)  # it is there, before the others have stopped
                    roster.exchange(b"2", time.monotonic() + 20)
                return roster.exchange(b"3", time.monotonic() + (0.2, 20, 20)[rank])
            except ConnectError as error:
                roster.give_up(error)
                return error

        errors = together(go_on)
        assert {error.ranks for error in errors[:2]} == {()}, errors
        assert str(errors[0]) == str(errors[1])
        assert re.match(
            r"^The group did not form: rank 0's connect_timeout_seconds \(2\S+ ms\) was over before all ranks were "
            r"connected\. Give connect more time on all ranks\.$",
            str(errors[0]),
        )

    def test_words_that_come_at_the_deadline(self, shelf):
        """They are taken, or this rank's time was over: no rank without a number is missed."""
        rosters = [StoreRoster(shelf, rank, 2, "job") for rank in range(2)]
        told = threading.Thread(target=rosters[1].exchange, args=(b"1", time.monotonic() + 20))
        told.start()
        rosters[0].exchange(b"1", time.monotonic() + 20)
        told.join(20)
        check, polls = shelf.check, itertools.count()

        def check_and_come(keys):
            found = check(keys)
            if len(keys) == 2 and next(polls) == 0:  # the other comes right behind this look
                shelf.set(next(key for key in keys if key.endswith("/1")), b"2")
            return found

        shelf.check = check_and_come
        with pytest.raises(ConnectError, match=r"rank 0's connect_timeout_seconds") as failed:
            rosters[0].exchange(b"2", time.monotonic())
        assert failed.value.ranks == ()

    def test_a_process_in_whose_place_another_was(self, shelf):
        """Once that has left, it waits in its place again."""
        told = []
        first = threading.Thread(target=lambda: told.append(connect(shelf, 0, 2, 20)))
        first.start()
        time.sleep(0.2)
        assert connect(shelf, 0, 2, 0.3).ranks == (1,)
        said = [[f"{number} of {rank}".encode() for rank in range(2)] for number in (1, 2)]
        assert connect(shelf, 1, 2, 20) == said
        first.join(20)
        assert told == [said]

    def test_ctrl_c_as_the_last_comes(self, shelf):
        """The others hear what has interrupted it, and not that some were missing."""
        told = []
        other = threading.Thread(target=lambda: told.append(connect(shelf, 1, 2, 20)))
        other.start()
        time.sleep(0.2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        first, compare_set = StoreRoster(shelf, 0, 2, "job"), shelf.compare_set

        def interrupted(key, expected, desired):
            if '"0"' in desired:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)  # longer than the caller waits for its thread
            return compare_set(key, expected, desired)

        shelf.compare_set = interrupted
        with pytest.raises(KeyboardInterrupt) as interrupt:
            first.exchange(b"first", time.monotonic() + 60)
        first.give_up(interrupt.value)
        other.join(20)
        assert [str(error) for error in told] == ["The group did not form: rank 0 has given up: KeyboardInterrupt."]

    def test_keys(self, shelf):
        """Tries in vain leave none behind, and a connection none of its steps but the last."""
        connect(shelf, 0, 2, 0.01)
        number = len(shelf.names())
        for _ in range(5):
            connect(shelf, 0, 2, 0.01)
        assert len(shelf.names()) == number
        together(lambda rank: connect(shelf, rank, 3, 20))
        assert [name for name in shelf.names() if "words 0" in name] == []

    def test_a_store_that_lacks_a_method(self):
        """One sentence says what ranks need."""

        class Lacking(distributed.Store):
            def check(self, keys):
                return not keys

        assert str(connect(Lacking(), 0, 2, 1)) == (
            "The group did not form: the store lacks set, get, check or compare_set, by which ranks find each other. "
            "Use PyTorch's TCPStore, FileStore or HashStore, or write what is missing."
        )

    @pytest.mark.parametrize(
        "error", [RuntimeError("Broken pipe\nstack of C++"), OSError("Broken pipe"), LookupError("Broken pipe")]
    )
    def test_a_store_that_raises(self, shelf, error):
        """One sentence, without the stack, whatever class of exceptions a user's own store has."""
        shelf.error = error
        assert str(connect(shelf, 0, 2, 1)) == (
            f"The group did not form: PyTorch's store has failed this rank: {type(error).__name__}: Broken pipe. Look "
            "at the network to whoever holds the store, usually rank 0 or torchrun, and at whether it still runs."
        )

    def test_a_store_that_falls_silent(self, shelf):
        """The deadline holds: it is not waited for like one that answers slowly."""
        rosters, is_over = [StoreRoster(shelf, rank, 2, "job") for rank in range(2)], threading.Event()
        together(lambda rank: rosters[rank].exchange(b"", time.monotonic() + 20), 2)
        shelf.check = lambda _: is_over.wait()
        began = time.monotonic()
        with pytest.raises(ConnectError, match="it has not answered by the deadline"):
            rosters[0].exchange(b"", began + 0.2)
        is_over.set()
        assert time.monotonic() - began < 2.5

    def test_a_store_that_raises_while_gloo_connects(self, shelf):
        """It is named, and no network."""

        class Failing(Slow):
            def set(self, key, value):
                if "/channel" in key:
                    raise LookupError("Broken pipe")  # noqa: EM101, TRY003 - as a user's store does
                shelf.set(key, value)

        def go_on(rank):
            roster, deadline = StoreRoster((shelf, Failing(shelf, 0))[rank], rank, 2, "job"), time.monotonic() + 20
            try:
                roster.exchange(b"", deadline)
                return roster.open_channel(deadline)
            except ConnectError as error:
                roster.give_up(error)
                return str(error)

        words = "The group did not form: PyTorch's store has failed this rank: LookupError: Broken pipe."
        assert [error[: len(words)] for error in together(go_on, 2)] == [words] * 2
