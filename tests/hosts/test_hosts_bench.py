import numpy as np
import pytest

from hosts_bench import worker
from hosts_bench.baselines import BASELINES, Baseline, Rank
from hosts_bench.measure import Measured, measure
from hosts_bench.page import make_page
from hosts_bench.scenes import SCENES, Row, Scene, optimum
from lab import rails, star
from treefold.errors import ConnectError

PAYLOAD = 1448 / 1514
PAIR = Scene("a pair", (Row(star(1000, 1000), 1 << 20, shares=(1, 1)),), (0, 1))


def measured(**changes):
    """Return a row of which one call should take 2 s, with what was measured of it."""
    row = Row(star(100, 100), 1 << 20)
    return Measured(PAIR, row, (1 << 20) / 2.0, **{"missing": {}, **changes})


class TestOptimum:
    def test_a_slow_port_bounds_all(self):
        assert optimum(star(100, 100, 100, 25)) == pytest.approx(25e6 / 8 * PAYLOAD)

    def test_equal_ports(self):
        assert optimum(star(100, 100, 100, 100)) == pytest.approx(100e6 / 8 * PAYLOAD * 4 / 6)

    def test_two_nics(self):
        assert optimum(rails(100, hosts=4, nics=2)) == pytest.approx(2 * optimum(star(100, 100, 100, 100)))


class TestFigures:
    def test_median_and_best(self):
        assert measured(seconds={"gloo": [4.0, 2.5, 8.0]}).figures("gloo") == (0.5, 0.8)

    def test_latency(self):
        result = Measured(PAIR, Row(star(100, 100), 4096, calls=50), 1e6, {}, {"gloo": [3.0, 1.0, 2.0]})
        assert result.figures("gloo") == (2.0, 1.0)

    def test_not_measured(self):
        assert measured().figures("gloo") is None


class TestPage:
    def test_a_row(self):
        page = make_page([measured(seconds={"gloo": [4.0, 2.5, 8.0]})], ["gloo", "MPICH"])
        assert "| star 100 100 | a pair | 1 MiB | 0.52 | 0.50 / 0.80 | – |" in page.splitlines()

    def test_what_is_missing_and_what_is_wrong(self):
        page = make_page([measured(missing={"MPICH": "mpi4py is not installed"}, wrong={"gloo": 3, "raw": 0})], [])
        assert page.splitlines()[-2:] == ["- MPICH: mpi4py is not installed", "- gloo got 3 elements wrong in a pair"]


class TestWorker:
    def test_counts_what_is_wrong(self, monkeypatch):
        """Rank 0's contribution, as the result of 2 ranks, lacks all of rank 1's; the first element is 0 on both."""
        baseline = Baseline("variables", lambda _: lambda array: array)
        monkeypatch.setitem(worker.BASELINES, "forgetful", baseline)
        prepared = worker.Worker(Rank(0, (0, 1), ())).prepare(
            baseline="forgetful", nbytes=400, shares=[1, 1], rates=[1, 1]
        )
        assert prepared == {"wrong": 99}

    def test_times_calls_on_zeros(self, monkeypatch):
        seen = []
        baseline = Baseline("variables", lambda _: lambda array: seen.append(array.copy()))
        monkeypatch.setitem(worker.BASELINES, "silent", baseline)
        rank = worker.Worker(Rank(1, (0, 1), ()))
        rank.prepare(baseline="silent", nbytes=12, shares=[1, 1], rates=[1, 1])
        times = rank.run(calls=2)
        assert np.array_equal(seen, [[0, 2, 4], [0, 0, 0], [0, 0, 0]])
        assert times["begin"] <= times["end"]

    def test_a_refusal(self, monkeypatch):
        def refuse(rank):
            raise ConnectError.gone(rank.rank)

        monkeypatch.setitem(worker.BASELINES, "local", Baseline("variables", refuse))
        prepared = worker.Worker(Rank(1, (0, 1), ())).prepare(baseline="local", nbytes=4, shares=[1, 1], rates=[1, 1])
        assert prepared["skipped"].startswith("The group did not form: rank 1 has ended")


class TestMeasure:
    def test_a_pair_of_hosts(self, build):
        """Every baseline is right in every round; baselines that lack NICs or a package are left out."""
        build(star(100))  # or the test is skipped
        [result] = measure(PAIR, ["raw sockets", "gloo", "gloo, part per NIC"], 2, lambda _: None)
        assert {name: len(seconds) for name, seconds in result.seconds.items()} == {"raw sockets": 2, "gloo": 2}
        assert result.wrong == {"raw sockets": 0, "gloo": 0}

    def test_scenes_fit_together(self):
        for scene in SCENES:
            ends = {tuple((cable.host, cable.nic, cable.switch) for cable in row.network.cables) for row in scene.rows}
            assert len(ends) == 1
            assert all(len(row.shares) == row.network.hosts == len(set(scene.placement)) for row in scene.rows)
        assert all(baseline.launcher in ("variables", "mpiexec") for baseline in BASELINES.values())
