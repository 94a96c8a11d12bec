"""Every interleaving of two and three ranks, with a crash at every step: one story, and nobody waits for ever."""

import itertools
import os

import pytest

from treefold import _native

if not _native.HAS_SHARED_MEMORY:
    pytest.skip("this system has no shared memory of the kind that groups need", allow_module_level=True)

from model import TABLES, Call, Model, Rules, Violation

CALLS = {
    "agree": Call("agree"),
    "small": Call("small"),
    "staged": Call("staged", chunks=3),
    "mapped": Call("mapped"),
    "placed": Call("placed"),
    "refused": Call("staged", chunks=2, differs=True),
}
#: Of these, every pair is tried with three ranks; of all of them in a long run.
_PAIRED = ("small", "mapped", "refused")
IS_FULL = os.environ.get("TREEFOLD_CASES") == "full"


class TestTwoRanks:
    @pytest.mark.parametrize(("first", "second"), list(itertools.product(CALLS, CALLS)))
    def test_two_calls_in_a_row(self, first, second):
        assert Model(2, [CALLS[first], CALLS[second]]).explore() > 100

    @pytest.mark.parametrize("middle", CALLS)
    def test_three_calls_of_which_the_first_and_the_last_share_memory(self, middle):
        """The third call uses the slots and the half of the first one."""
        assert Model(2, [CALLS["small"], CALLS[middle], CALLS["staged"]]).explore() > 100

    def test_results_that_ranks_keep_as_long_as_they_like(self):
        """An area is written again only when nobody keeps it."""
        assert Model(2, [Call("mapped", keeps=True)] * 4).explore() > 1000

    def test_every_program_and_every_transition_is_tried(self):
        assert {call.path for call in CALLS.values()} == set(TABLES["programs"])
        assert {event for _, event, _ in TABLES["transitions"]} == {"enter", "match", "commit", "refuse", "spoil"}


class TestThreeRanks:
    @pytest.mark.parametrize("path", CALLS)
    def test_one_call_of_which_one_rank_sees_the_end(self, path):
        """Two of three may end, at any steps."""
        assert Model(3, [CALLS[path]], crashes=2).explore() > 100

    @pytest.mark.parametrize(("first", "second"), list(itertools.product(*[CALLS if IS_FULL else _PAIRED] * 2)))
    def test_two_calls_in_a_row(self, first, second):
        assert Model(3, [CALLS[first], CALLS[second]], crashes=1 + IS_FULL).explore() > 100

    def test_results_that_ranks_keep_as_long_as_they_like(self):
        assert Model(3, [Call("mapped", keeps=True)] * (2 + IS_FULL), crashes=1).explore() > 1000


class TestMutants:
    def test_verdict_and_generation_in_two_words(self):
        """Ranks are told different stories where a rank ends while another one commits."""
        with pytest.raises(Violation, match="ends in"):
            Model(3, [Call("mapped")], Rules(has_two_words=True)).explore()

    def test_no_double_buffer(self):
        """A chunk is written over the one that others still read."""
        with pytest.raises(Violation, match="reads staging"):
            Model(2, [Call("staged", chunks=2)], Rules(has_double_buffer=False)).explore()

    def test_every_rank_chooses_the_area_for_itself(self):
        """Ranks that see claims at different times choose different areas."""
        with pytest.raises(Violation, match="copies out"):
            Model(2, [Call("mapped", keeps=True)] * 2, Rules(chooses_once=False)).explore()

    def test_a_wait_that_looks_at_the_generation_only(self, monkeypatch):
        """Ranks wait for ever for one that ended between its decision and telling it."""
        whole = Model.outcome

        def outcome(model, state, rank):
            told = whole(model, state, rank)
            is_waiting = rank.role == "waits" and state.met < rank.meetings
            return "moving" if is_waiting and told != "broken" else told

        monkeypatch.setattr(Model, "outcome", outcome)
        with pytest.raises(Violation, match="waits for ever"):
            Model(2, [Call("agree")]).explore()
