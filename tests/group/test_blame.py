import pytest

from treefold.errors import DeadlineError, PeerLostError
from treefold.group.links.blame import Said, error_of


def said(cause, suspects=(), ended=4, *, holds=True, waiters=(), away_s=None):
    """Return what a rank says."""
    seconds = away_s or 5.0 * (cause == "away")
    return Said(cause, frozenset(suspects), ended, holds, frozenset(waiters), seconds)


class TestErrorOf:
    @pytest.mark.parametrize(
        ("answers", "named"),
        [
            ({0: said("lost", [2])}, (2,)),
            ({0: said("lost", [1]), 1: said("lost", [2])}, (2,)),
            ({0: said("lost", [1]), 1: said("interrupted")}, (1,)),
            ({0: said("lost", [1]), 1: said("left")}, (1,)),
            ({0: said("lost", [1], waiters=[2]), 1: said("interrupted", ended=5)}, (1,)),
            ({0: said("late", [2], waiters=[1]), 1: said("late", [2])}, (2,)),
            ({0: said("late", waiters=[1, 2]), 1: said("lost", [0], waiters=[2])}, (2,)),
        ],
        ids=["death", "chain", "interrupt", "leaving", "later interrupt", "late", "derived"],
    )
    def test_names_who_says_nothing_or_that_it_stops(self, answers, named):
        """A rank that waits for a rank that waits is blameless."""
        assert error_of(answers, 0).ranks == named

    def test_does_not_name_who_has_left_after_this_call(self):
        """It has its result; who died has not let this rank have it."""
        error = error_of({0: said("lost", [2]), 1: said("left", ended=5)}, 0)
        assert error.ranks == (2,)
        assert "rank 1 had the result already" in str(error)

    def test_names_who_has_left_with_what_it_had_sent(self):
        """If nobody else is missing."""
        assert error_of({0: said("lost", [1]), 1: said("left", ended=5)}, 0).ranks == (1,)
        assert error_of({0: said("lost", [1]), 1: said("left", ended=5), 2: said("left", ended=5)}, 0).ranks == (1,)

    def test_says_of_nobody_in_a_call_that_it_has_its_result(self):
        """A call of several rounds is over at the last of them."""
        error = error_of({0: said("lost", [2]), 1: said("lost", [2], ended=5, holds=False)}, 0)
        assert "had the result" not in str(error)

    @pytest.mark.parametrize(
        "own",
        [said("lost", [0], waiters=[1], away_s=5.0), said("away", [0])],
        ids=["broken connections", "its own deadline"],
    )
    def test_tells_a_rank_that_it_was_away(self, own):
        """Others had waited for it, directly or not, and have gone on."""
        error = error_of({0: said("late", [2]), 1: said("late", [0]), 2: own}, 2)
        assert str(error) == (
            "Rank 2, this one, was away until after a deadline of this call, and has no result: "
            "outputs are as they were. The others may have one, and may go on without it: connect again to come back."
        )
        assert error.ranks == (2,)

    def test_tells_a_rank_that_it_was_one_of_several_that_were_away(self):
        """Which of them it is stands in the sentence, and all are named."""
        error = error_of({0: said("late", [1, 2]), **dict.fromkeys((1, 2), said("lost", [0], away_s=5.0))}, 2)
        assert str(error) == (
            "Ranks 1, 2, rank 2 being this one, were away until after a deadline of this call, and have no result: "
            "outputs are as they were. The others may have one, and may go on without them: connect again to come "
            "back."
        )
        assert error.ranks == (1, 2)

    def test_tells_a_rank_alone_that_it_was_away(self):
        """Of those whom a late rank misses, who was away is known by its own word."""
        answers = {
            0: said("lost", [2], waiters=[1]),
            1: said("away", [2], waiters=[0]),
            2: said("late", waiters=[0, 1]),
        }
        assert error_of(answers, 1).ranks == (1,)

    def test_tells_a_rank_that_it_was_away_though_the_late_one_missed_another(self):
        """That one was waiting for it, and had no deadline to notice yet."""
        answers = {0: said("away", [1]), 1: said("lost", [2], waiters=[0]), 2: said("late", [1])}
        assert error_of(answers, 0).ranks == (0,)

    @pytest.mark.parametrize(
        "others",
        [{1: said("late", waiters=[0])}, {}],
        ids=["one has answered", "nobody has answered yet"],
    )
    def test_tells_a_rank_that_it_was_away_though_it_waits_for_one_that_has_not_answered(self, others):
        """Over MPI words come one after the other; whoever was away cannot tell who is late."""
        error = error_of({0: said("away", [2], waiters=[1])} | others, 0)
        assert (type(error), error.ranks) == (DeadlineError, (0,))
        assert str(error).startswith("Rank 0, this one, was away until after a deadline of this call")

    def test_names_who_is_silent_beside_one_that_was_away(self):
        """Both have stopped, and one of them is back."""
        answers = {0: said("late", [1, 2]), 1: said("away", [0, 2])}
        assert [error_of(answers, rank).ranks for rank in answers] == [(2,)] * 2

    def test_names_who_is_silent_beside_one_that_noticed_the_deadline_late(self):
        """On a busy machine; nobody was there to see it."""
        assert error_of({0: said("late", [1], away_s=0.1)}, 0).ranks == (1,)
        assert error_of({0: said("away", [1], away_s=0.4)}, 0).ranks == (1,)

    def test_names_who_came_beside_one_that_noticed_the_deadline_late(self):
        """The other has come when that one had given up."""
        answers = {0: said("late", [1], away_s=0.1), 1: said("lost", [0], away_s=3.0)}
        assert [error_of(answers, rank).ranks for rank in answers] == [(1,)] * 2

    def test_names_who_was_away_beside_one_that_is_busy(self):
        """It had told the others as it came back, and one of them has its result, and says nothing until it calls."""
        answers = {0: said("away", [1, 2]), 1: said("lost", [0], waiters=[2])}
        assert [error_of(answers, rank).ranks for rank in answers] == [(0,)] * 2

    def test_names_who_was_away_beside_those_that_have_come_further(self):
        """They wait for ranks that are between their calls."""
        answers = {
            0: said("late", [1]),
            1: said("lost", [0], 5, waiters=[2], away_s=10.0),
            3: said("lost", [0], 5, waiters=[1, 2]),
        }
        assert [error_of(answers, rank).ranks for rank in answers] == [(1,)] * 3

    def test_names_who_was_away_and_not_yet_late_itself(self):
        """The deadlines of the others had passed; whom a late rank missed was waiting for it."""
        answers = {0: said("late", [1]), 1: said("lost", [0], waiters=[2]), 2: said("lost", [0, 1], away_s=8.0)}
        assert [error_of(answers, rank).ranks for rank in answers] == [(2,)] * 3

    def test_names_whom_most_miss_of_those_that_were_away(self):
        """One that was there, and noticed its own deadline a little too late, is missed by few."""
        late = [said("late", [1]), said("away", [2, 3]), said("late", [1, 3]), said("late", [1], away_s=0.07)]
        assert error_of(dict(enumerate(late)), 1).ranks == (1,)

    @pytest.mark.parametrize("words", [b"", b'[1, "TypeError", []]'], ids=["closed", "given up"])
    def test_names_who_has_left_in_the_words_of_connecting(self, words):
        """Over MPI, those of ranks that do not go on from connecting come by the same channel."""
        error = error_of({0: said("lost", [1]), 1: Said.read(words)}, 0)
        assert (type(error), error.ranks) == (PeerLostError, (1,))

    def test_names_whoever_was_away_by_far_the_longest(self):
        """On a busy machine the others notice their deadlines late, and hear of broken connections first."""
        answers = {0: said("away", [1], away_s=5.3), 1: said("late", [0], away_s=0.07), 2: said("lost", [1])}
        assert [error_of(answers, rank).ranks for rank in answers] == [(0,)] * 3
        assert {type(error_of(answers, rank)) for rank in answers} == {DeadlineError}

    @pytest.mark.parametrize("rank", [0, 1])
    def test_says_of_who_has_come_later_that_it_was_slow(self, rank):
        """Its deadline was later, too, so it hears of the broken connection first."""
        error = error_of({0: said("late", [1]), 1: said("lost", [0])}, rank)
        assert str(error).startswith("Rank 1 was there, but what it sends had not arrived by the deadline")

    @pytest.mark.parametrize("rank", [0, 1, 2])
    def test_says_of_who_was_there_that_it_was_slow(self, rank):
        """It has waited in the call itself until its own deadline: nobody was away, and all ranks say so alike."""
        answers = {0: said("late", [1]), 1: said("late", [0, 2]), 2: said("late", [1], waiters=[0])}
        error = error_of(answers, rank)
        assert str(error) == (
            "Rank 1 was there, but what it sends had not arrived by the deadline, so this call did not happen: outputs "
            "are as they were. The network is too slow for this value, or was cut for a while: give connect a larger "
            "timeout_seconds, and let all ranks connect again."
        )
        assert error.ranks == (1,)
