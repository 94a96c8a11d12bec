"""Links that lie are found: a flipped byte, a dropped write, a lie under load only; the rest is measured and kept."""

import json
import os
import stat
import sys
import warnings

import numpy as np
import pytest

import treefold
from treefold.execution import links
from treefold.execution.links import LinkResult, LinkTable, verify

ALPHA, BANDWIDTH = 5e-6, 10e9
SIZES = (4095, 65537)


class FakeMachine:
    """Three devices; ``lie(pair, data, is_loaded)`` may change what arrives."""

    def __init__(self, lie=lambda _pair, data, _is_loaded: data, name="a machine"):
        self.lie, self.name = lie, name
        self.is_loaded = False
        self.num_copies = 0

    def machine(self):
        return self.name

    def devices(self):
        return ["gpu:0", "gpu:1", "cpu:0"]

    def put(self, pattern, device):
        return [device, pattern.copy()]

    def copy(self, source, target):
        """Copy, unless the link lies."""
        self.num_copies += 1
        arrived = self.lie((source[0], target[0]), source[1].copy(), self.is_loaded)
        if arrived is not None:
            target[1][:] = arrived

    def seconds_to_copy(self, source, target):
        del target
        return ALPHA + len(source[1]) / BANDWIDTH

    def get(self, buffer):
        return buffer[1]

    def load(self, pairs):
        """Note that the others are busy."""
        assert len(pairs) == 5
        self.is_loaded = True

        def end():
            self.is_loaded = False

        return end


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """Keep results in a folder of the test's own, and know nothing before and after; copy less than on a machine."""
    monkeypatch.setattr(links, "SIZES", SIZES)
    monkeypatch.setattr(links, "_TIMED_SIZES", SIZES)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setattr(links, "_known", {})


def flips(data):
    data[len(data) // 2] ^= 16
    return data


class TestVerify:
    def test_proves_and_measures_every_direction(self):
        table = verify(FakeMachine())
        assert {(link.source, link.target) for link in table.links} == {
            (a, b) for a in FakeMachine().devices() for b in FakeMachine().devices() if a != b
        }
        for link in table.links:
            assert link.is_proved
            assert link.bytes_per_s == pytest.approx(BANDWIDTH)
            assert link.alpha_s == pytest.approx(ALPHA)
            assert links.is_proved(link.source, link.target)

    @pytest.mark.parametrize(
        ("lie", "problem"),
        [
            (flips, f"1 of {SIZES[0]} bytes are wrong, the first at {SIZES[0] // 2}"),
            (lambda _data: None, f"{SIZES[0]} of {SIZES[0]} bytes are wrong, the first at 0"),
            (np.zeros_like, "bytes are wrong, the first at"),
        ],
        ids=["a flipped bit", "a dropped write", "zeros"],
    )
    def test_finds_a_link_that_lies(self, lie, problem):
        wrong = ("gpu:0", "gpu:1")
        machine = FakeMachine(lambda pair, data, _is_loaded: lie(data) if pair == wrong else data)
        with pytest.warns(RuntimeWarning) as caught:
            table = verify(machine)
        (message,) = [str(warning.message) for warning in caught]
        assert message.startswith("Copies from gpu:0 to gpu:1 do not deliver what was sent (")
        assert problem in message
        assert message.endswith(
            "so they go through the host. The usual cause is an IOMMU or PCIe access control (ACS) between the two: "
            "turn it off in the firmware, or boot with iommu=pt."
        )
        assert not links.is_proved(*wrong)
        assert links.is_proved("gpu:1", "gpu:0")
        assert [link.bytes_per_s for link in table.links if not link.is_proved] == [0.0]

    def test_finds_a_link_that_lies_under_load_only(self):
        machine = FakeMachine(lambda pair, data, load: flips(data) if load and pair == ("gpu:1", "cpu:0") else data)
        with pytest.warns(RuntimeWarning, match=r"gpu:1 to cpu:0 .* wrong while other links are busy, the first at"):
            verify(machine)
        assert not links.is_proved("gpu:1", "cpu:0")
        assert not machine.is_loaded

    def test_nothing_is_proved_before(self):
        assert not links.is_proved("gpu:0", "gpu:1")


class TestCache:
    def test_keeps_results_per_machine(self, monkeypatch):
        verify(FakeMachine())
        monkeypatch.setattr(links, "_known", {})
        again, other = FakeMachine(), FakeMachine(name="another driver")
        assert verify(again).links == verify(FakeMachine()).links
        assert again.num_copies == 0
        assert links.is_proved("gpu:0", "gpu:1")
        verify(other)
        assert other.num_copies > 0

    def test_can_be_passed_over(self):
        verify(FakeMachine())
        again = FakeMachine()
        verify(again, use_cache=False)
        assert again.num_copies > 0

    def test_remembers_a_lie(self, monkeypatch):
        with pytest.warns(RuntimeWarning):
            verify(FakeMachine(lambda pair, data, _load: flips(data) if pair[1] == "cpu:0" else data))
        monkeypatch.setattr(links, "_known", {})
        with pytest.warns(RuntimeWarning) as caught:
            verify(FakeMachine())
        assert [str(warning.message)[:28] for warning in caught] == [
            "Copies from gpu:0 to cpu:0 d",
            "Copies from gpu:1 to cpu:0 d",
        ]
        assert not links.is_proved("gpu:0", "cpu:0")

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            '{"format": 1}',
            '{"format": 2, "machine": "a machine", "links": []}',
            "9" * 5000,
            "[" * 100_000,
        ],
    )
    def test_ignores_files_that_are_none(self, text):
        path = links.cache_file("a machine")
        path.parent.mkdir(parents=True)
        path.write_text(text)
        machine = FakeMachine()
        verify(machine)
        assert machine.num_copies > 0
        assert json.loads(path.read_text())["machine"] == "a machine"

    @pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="needs a folder that cannot be written")
    def test_a_folder_that_cannot_be_written_is_no_error(self, tmp_path):
        tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
        verify(FakeMachine())


class TestTable:
    def test_is_printed(self):
        table = LinkTable(
            "m",
            (
                LinkResult("gpu:0", "gpu:1", "", 25e9, 2.5e-6),
                LinkResult("gpu:1", "gpu:0", "1 of 9 bytes are wrong, the first at 4", 0.0, 0.0),
            ),
        )
        assert str(table) == (
            "from   to     every byte                              GB/s   latency µs\n"
            "gpu:0  gpu:1  right                                   25.00  2.5\n"
            "gpu:1  gpu:0  1 of 9 bytes are wrong, the first at 4  -      -"
        )

    def test_without_gpus(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            table = treefold.verify_links()
        if not table.links:
            assert str(table) == (
                "No pairs of devices to verify: this takes at least one GPU that a loaded framework reports."
            )
