import dataclasses

import pytest

from treefold.bench.clock import Pace
from treefold.bench.peers import PEERS, Team, find_missing
from treefold.bench.sweep import Progress, measure
from treefold.bench.work import Work
from treefold.errors import PeerError

WORK = Work("w", ((1001,), (7, 3)), devices=3, threads=1)


class TestPeers:
    def test_these_are_compared_with(self):
        """The list that --against takes."""
        assert list(PEERS) == ["numpy", "torch", "tensorflow", "jax", "gloo", "mpi"]

    @pytest.mark.parametrize("placement", ["in-place", "out-of-place", "new", "shared"])
    @pytest.mark.parametrize("op", ["sum", "mean", "max"])
    def test_numpy_is_right_in_a_process_of_its_own(self, placement, op):
        """It does the work, is checked, and its times come back."""
        work = dataclasses.replace(WORK, placement=placement, op=op)
        with Team(PEERS["numpy"], devices=3, threads=1) as team:
            forms = team.prepare(work)
            assert [team.count_wrong(form) for form in forms] == [0]
            assert len(team.runner(forms[0])(5)) == 5
            team.drop()

    def test_tensorflow_offers_three_forms_and_all_are_right(self):
        """Eager, in a function, and packed hierarchical copy: right for two devices."""
        work = dataclasses.replace(WORK, devices=2)
        with Team(PEERS["tensorflow"], devices=2, threads=1) as team:
            forms = team.prepare(work)
            wrong = {form: team.count_wrong(form) for form in forms}
        assert wrong == {"eager": 0, "in a function": 0, "packed hierarchical copy": 0}

    def test_wrong_results_of_a_peer_are_counted(self):
        """For three devices TensorFlow's hierarchical copy drops the last replica; #wrong shows it."""
        with Team(PEERS["tensorflow"], devices=3, threads=1) as team:
            team.prepare(WORK)
            assert team.count_wrong("packed hierarchical copy") == WORK.count * 3

    def test_what_a_peer_cannot_do_is_a_reason_and_no_failure(self):
        """The row has the sentence, and the team serves the next work."""
        mean = dataclasses.replace(WORK, op="mean", dtype="int32", placement="new")
        with Team(PEERS["numpy"], devices=3, threads=1) as team:
            row = measure(mean, Pace(1, 0), teams=[team], progress=Progress())
            assert [(rival.peer, rival.note) for rival in row.rivals] == [
                ("numpy", "the mean of integers has another dtype")
            ]
            row = measure(WORK, Pace(1, 0), teams=[team], progress=Progress())
            assert [(rival.form, rival.wrong) for rival in row.rivals] == [("np.add(out=)", 0)]

    def test_a_missing_peer_is_not_installed(self):
        """It is a line in the table, and nothing is started."""
        missing = dataclasses.replace(PEERS["jax"], needs=("no_such_module_of_anyone",))
        assert find_missing(missing) == "no_such_module_of_anyone"
        with Team(missing, devices=3, threads=1) as team:
            row = measure(WORK, Pace(1, 0), teams=[team], progress=Progress())
        assert [(rival.peer, rival.note, rival.time_s) for rival in row.rivals] == [("jax", "not installed", None)]

    def test_a_process_that_dies_is_a_reason(self):
        """The team says so once and for all."""
        with Team(PEERS["numpy"], devices=3, threads=1) as team:
            team.prepare(WORK)
            for process in team._processes:
                process.kill()
            for _ in range(2):
                with pytest.raises(PeerError, match=r"^its process ended$"):
                    team.count_wrong("np.add(out=)")
