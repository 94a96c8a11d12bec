"""The calls of the GPU benchmark to PyTorch, which here has a pretended GPU."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from gpu_bench import machine as machines
from gpu_bench.machine import CudaMachine
from treefold.errors import BenchError


class FakeEvent:
    """An event on a clock of 6 ms between two recordings."""

    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self):
        """Be recorded."""

    def synchronize(self):
        """Have come."""

    def elapsed_time(self, _end):
        return 6.0


class TestCudaMachine:
    @pytest.fixture
    def gpu(self, monkeypatch):
        """Return a machine of one GPU that is not there, and what it was asked to wait for."""
        waits = []
        card = SimpleNamespace(name="Card", total_memory=8_000_000_000)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
        monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
        monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
        monkeypatch.setattr(torch.cuda, "Stream", lambda place: place)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
        return CudaMachine(), waits

    def test_events_around_a_run_of_calls(self, gpu):
        calls = []
        assert gpu[0].on_gpu(lambda: calls.append(1))(3) == [0.002]
        assert len(calls) == 3
        assert gpu[1] == ["cuda:0"]

    def test_clocks_of_the_host(self, gpu):
        machine, waits = gpu
        assert len(machine.to_the_end(lambda: None)(3)) == 3
        assert len(waits) == 4
        assert len(machine.enqueued(lambda: None)(3)) == 3
        assert len(waits) == 5

    def test_copies_both_ways(self, gpu):
        up, down = ((torch.full((3,), value), torch.zeros(3)) for value in (1.0, 2.0))
        gpu[0].both_ways(up, down)()
        assert [float(target[0]) for _, target in (up, down)] == [1.0, 2.0]

    def test_facts_name_the_gpus_and_what_drives_them(self, gpu, monkeypatch):
        monkeypatch.setattr(machines, "_driver", lambda: "580.1")
        facts = gpu[0].facts()
        assert (facts["GPUs"], facts["driver"]) == ("Card, 8 GB", "580.1")
        assert {"runtime", "cores"} <= {*facts}

    def test_peers_work_in_place(self, gpu, monkeypatch):
        comm = SimpleNamespace(
            reduce_add=lambda tensors, destination: sum(tensors) + destination,
            broadcast=lambda total, out: [tensor.copy_(total) for tensor in out],
        )
        nccl = SimpleNamespace(is_available=lambda _: False)
        modules = {"torch.nn.parallel.comm": comm, "torch.cuda.nccl": nccl}
        monkeypatch.setattr(machines.importlib, "import_module", modules.__getitem__)
        tensors = [torch.full((2,), 2.0**replica) for replica in range(3)]
        baselines = gpu[0].baselines(tensors)
        baselines.pop("torch.cuda.comm")()
        assert [float(tensor[1]) for tensor in tensors] == [7.0] * 3
        assert not baselines

    def test_without_a_gpu_it_says_what_to_do(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(BenchError, match=r"^PyTorch \S+ reports no GPU, so there is nothing to measure\. Run this"):
            CudaMachine()
