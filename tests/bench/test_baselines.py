import dataclasses

import pytest

from memory_bench.libraries import LIBRARIES, find_missing
from memory_bench.team import Team
from treefold.bench.baselines import BASELINES, InProcess
from treefold.bench.clock import Pace
from treefold.bench.sweep import Progress, measure
from treefold.bench.work import Work
from treefold.errors import PeerError

WORK = Work("w", ((1001,), (7, 3)), devices=3, threads=1)


class TestBaselines:
    """The loops of the wheel, in this process."""

    @pytest.fixture(params=BASELINES)
    def baseline(self, request):
        return InProcess(request.param, BASELINES[request.param])

    @pytest.mark.parametrize("placement", ["in-place", "out-of-place", "new", "shared"])
    @pytest.mark.parametrize("op", ["sum", "mean", "min", "max", "product"])
    @pytest.mark.parametrize("devices", [1, 3])
    def test_every_form_is_right(self, baseline, placement, op, devices):
        work = dataclasses.replace(WORK, placement=placement, op=op, devices=devices)
        forms = baseline.prepare(work)
        assert forms
        for _ in range(2):
            assert {form: baseline.count_wrong(form) for form in forms} == dict.fromkeys(forms, 0)
            assert [len(baseline.time(form, 3)) for form in forms] == [3] * len(forms)
        baseline.drop()

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64"])
    def test_every_form_is_right_in_other_dtypes(self, baseline, dtype):
        """Sums of few small numbers are exact in all of them."""
        forms = baseline.prepare(dataclasses.replace(WORK, dtype=dtype))
        assert {form: baseline.count_wrong(form) for form in forms} == dict.fromkeys(forms, 0)

    def test_wrong_elements_are_counted(self):
        class Forgets(BASELINES["numpy"]):
            def _one_by_one(self):
                self._columns[0][-1][...] = 0
                return super()._one_by_one()

        forgets = InProcess("forgets", Forgets)
        (form,) = forgets.prepare(WORK)
        assert forgets.count_wrong(form) == 1001 * 3

    def test_what_a_library_raises_is_the_reason(self):
        class Breaks(BASELINES["numpy"]):
            def forms(self):
                message = "no such kernel\nmore"
                raise RuntimeError(message)

        row = measure(WORK, Pace(1, 0), baselines=[InProcess("breaks", Breaks)], progress=Progress())
        assert [(rival.peer, rival.note) for rival in row.rivals] == [("breaks", "RuntimeError: no such kernel")]

    @pytest.mark.parametrize(
        ("name", "changes", "reason"),
        [
            ("numpy", {"op": "mean", "dtype": "int32", "placement": "new"}, "the mean of integers has another dtype"),
            ("torch", {"op": "mean", "dtype": "int32", "placement": "new"}, "the mean of integers has another dtype"),
            ("torch", {"dtype": "uint16"}, "PyTorch has no arithmetic for uint16"),
        ],
    )
    def test_what_a_library_cannot_do_is_a_reason(self, name, changes, reason):
        with pytest.raises(PeerError, match=f"^{reason}$"):
            InProcess(name, BASELINES[name]).prepare(dataclasses.replace(WORK, **changes))


class TestLibraries:
    """The libraries of ``make bench``, in processes of their own."""

    def test_these_are_compared_with(self):
        assert list(LIBRARIES) == ["numpy", "torch", "tensorflow", "jax", "gloo", "mpi"]

    @pytest.mark.parametrize("placement", ["in-place", "out-of-place", "new", "shared"])
    @pytest.mark.parametrize("op", ["sum", "mean", "max"])
    def test_numpy_is_right_in_a_process_of_its_own(self, placement, op):
        work = dataclasses.replace(WORK, placement=placement, op=op)
        with Team(LIBRARIES["numpy"], devices=3, threads=1) as team:
            forms = team.prepare(work)
            assert [team.count_wrong(form) for form in forms] == [0]
            assert len(team.time(forms[0], 5)) == 5
            team.drop()

    def test_tensorflow_offers_three_forms_and_all_are_right(self):
        work = dataclasses.replace(WORK, devices=2)
        with Team(LIBRARIES["tensorflow"], devices=2, threads=1) as team:
            forms = team.prepare(work)
            wrong = {form: team.count_wrong(form) for form in forms}
        assert wrong == {"eager": 0, "in a function": 0, "packed hierarchical copy": 0}

    def test_wrong_results_of_a_peer_are_counted(self):
        with Team(LIBRARIES["tensorflow"], devices=3, threads=1) as team:
            team.prepare(WORK)
            assert team.count_wrong("packed hierarchical copy") == WORK.count * 3

    def test_what_a_peer_cannot_do_is_a_reason_and_no_failure(self):
        mean = dataclasses.replace(WORK, op="mean", dtype="int32", placement="new")
        with Team(LIBRARIES["numpy"], devices=3, threads=1) as team:
            row = measure(mean, Pace(1, 0), baselines=[team], progress=Progress())
            assert [(rival.peer, rival.note) for rival in row.rivals] == [
                ("numpy", "the mean of integers has another dtype")
            ]
            row = measure(WORK, Pace(1, 0), baselines=[team], progress=Progress())
            assert [(rival.form, rival.wrong) for rival in row.rivals] == [("np.add(out=)", 0)]

    def test_a_missing_peer_is_not_installed(self):
        missing = dataclasses.replace(LIBRARIES["jax"], needs=("no_such_module_of_anyone",))
        assert find_missing(missing) == "no_such_module_of_anyone"
        with Team(missing, devices=3, threads=1) as team:
            row = measure(WORK, Pace(1, 0), baselines=[team], progress=Progress())
        assert [(rival.peer, rival.note, rival.time_s) for rival in row.rivals] == [("jax", "not installed", None)]

    def test_a_process_that_dies_is_a_reason(self):
        with Team(LIBRARIES["numpy"], devices=3, threads=1) as team:
            team.prepare(WORK)
            for process in team._processes:
                process.kill()
            for _ in range(2):
                with pytest.raises(PeerError, match=r"^its process ended$"):
                    team.count_wrong("np.add(out=)")
