"""The benchmark of GPUs, on host memory in the place of a GPU: its bytes, ratios and checks, not its times."""

import importlib.util
import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpu_bench import tasks
from gpu_bench.figures import NOT_MEASURED, Figure, make_figures
from gpu_bench.machine import Machine
from gpu_bench.measure import Contender, Measured, Task, in_place, measure
from gpu_bench.report import GpuRun, make_page, run_all, write
from gpu_bench.tasks import (
    ADVERSARIAL,
    BOTH,
    COPY,
    FOREACH,
    LOOP,
    PAGEABLE,
    PINNED,
    SEVERAL,
    SMALL,
    adversarial_name,
    fold_name,
    make_tasks,
)
from gpu_bench.tensors import AdversarialTensors, Tensors
from treefold.bench.clock import Pace, Spread, clocked
from treefold.bench.work import Work
from treefold.execution.gpus import VARIABLE

ROOT = Path(__file__).parents[2]
PACE = Pace(rounds=3, warmup=0)
SHRINK = 1 << 16


class HostMachine(Machine):
    """Host memory stands for the GPUs; a clock that is told what to say."""

    host = "cpu:7"

    def __init__(self, count=1):
        self.gpus = [f"cpu:{index}" for index in range(count)]
        self.places = ["cpu"] * count
        self.asked = []
        self.pins = 0

    def facts(self):
        return {"GPUs": "none"}

    def on_gpu(self, call):
        """Make every call take 20 milliseconds: one is a round."""
        ticks = itertools.count()

        def noted():
            self.asked.append(os.environ.get(VARIABLE))
            call()

        return clocked(noted, lambda: 0.02 * next(ticks))

    def synchronize(self):
        """Host memory is always up to date."""

    def pinned(self, tensor):
        self.pins += 1
        return tensor

    def both_ways(self, up, down):
        return lambda: [target.copy_(source) for source, target in (up, down)]

    def baselines(self, tensors):
        """Return one that does it, and one that cannot."""

        def fold():
            total = sum(tensors)
            for tensor in tensors:
                tensor.copy_(total)

        def refuse():
            message = "no NCCL here\nmore lines"
            raise RuntimeError(message)

        return {"fold": fold, "nccl": refuse}


def rounds(*seconds):
    return tuple((one,) for one in seconds)


def found(**changes):
    """Return what a task came out with: 2 ms and 4 ms for 160 bytes, beside copies of 1 ms and 4 ms for 80."""
    name = fold_name("float32", "sum")
    times = {"cuda": rounds(2e-3, 4e-3), "local": rounds(4e-3, 8e-3), COPY: rounds(1e-3, 4e-3)}
    nbytes = {"cuda": 160, "local": 160, COPY: 80}
    wrong, executors = {"cuda": 0, "local": 0}, {"cuda": "cuda", "local": "local"}
    return replace(Measured(name, times, nbytes, {}, wrong, executors), **changes)


class TestArithmetic:
    def test_a_share_compares_bytes_per_second_within_each_round(self):
        """2 × the bytes in 2 × and 1 × the time: 1 and 2, of which the middle is 1.5."""
        assert found().share("cuda", COPY) == Spread.of([1.0, 2.0])
        assert found().share("local", COPY).median == 0.75

    def test_a_speedup_compares_times_within_each_round(self):
        assert found().speedup("cuda", "local") == Spread.of([2.0, 2.0])

    def test_in_place_every_contribution_is_read_and_written(self):
        """8 replicas of 4096 bytes: 65,536 bytes; the copy reads and writes the block in which they lie."""
        task = make_tasks(HostMachine(), SHRINK)[fold_name("bfloat16", "mean")](HostMachine())
        assert task.tensors.nbytes == 8 * 4096
        assert {one.name: one.nbytes for one in task.contenders} == {"cuda": 65536, "local": 65536, COPY: 65536}

    def test_a_copy_counts_the_gaps_that_it_copies(self):
        """3 replicas of 5 float32 take 512 bytes each in a block."""
        tensors = Tensors(Work("w", ((5,),), devices=3), ["cpu"] * 3)
        assert tensors.nbytes == 60
        assert tensors.blocks["cpu"].nbytes == 1536
        assert [tensor.data_ptr() - tensors.blocks["cpu"].data_ptr() for tensor in tensors.columns[0]] == [0, 512, 1024]

    def test_a_pair_sends_one_replica_in_each_direction(self):
        """256 MiB / 65536, whatever else the host reads and writes."""
        task = make_tasks(HostMachine(), SHRINK)[PINNED](HostMachine())
        assert {contender.nbytes for contender in task.contenders} == {4096}

    @pytest.mark.parametrize(
        ("changes", "verdict"),
        [
            ({}, "reached"),
            ({"times": found().times | {COPY: rounds(0.8e-3, 1.6e-3)}}, "not reached"),
            ({"wrong": {"cuda": 3, "local": 0}}, "not reached: 3 elements are wrong"),
            ({"executors": {"cuda": "local"}}, "not judged: the plan ran on the local executor"),
            ({"times": {"cuda": rounds(1.0)}}, NOT_MEASURED),
        ],
    )
    def test_figures_are_judged(self, changes, verdict):
        measured = found(**changes)
        figure = make_figures()[0]
        assert (figure.task, figure.wanted) == (measured.name, "≥ 0.90")
        assert figure.verdict({measured.name: measured}) == verdict

    def test_other_sizes_are_not_judged(self):
        assert make_figures()[0].verdict({found().name: found()}, is_shrunk=True) == "not judged: other sizes"

    def test_float64_and_adversarial_data_have_bounds_of_their_own(self):
        wanted = {figure.task: figure.wanted for figure in make_figures()}
        assert wanted[fold_name("float64", "mean")] == "≥ 0.70"
        assert wanted[fold_name("float16", "sum")] == wanted[adversarial_name("float64")] == "shown"

    def test_times_have_an_upper_bound(self):
        (figure,) = (figure for figure in make_figures() if figure.task == SMALL)
        for seconds, verdict in ((59.9e-6, "reached"), (60.1e-6, "not reached")):
            measured = found(name=SMALL, enqueued={"cuda": rounds(seconds)})
            assert figure.verdict({SMALL: measured}) == verdict
        assert figure.wanted == "≤ 60 µs"
        assert figure.show({SMALL: measured}, "cuda") == "60 [60–60] µs"

    def test_what_has_no_bound_is_shown(self):
        (figure,) = (figure for figure in make_figures() if figure.task == PAGEABLE)
        measured = found(name=PAGEABLE, times={"cuda": rounds(2e-3), BOTH: rounds(1e-3)}, nbytes={"cuda": 1, BOTH: 1})
        assert (figure.wanted, figure.verdict({PAGEABLE: measured})) == ("shown", "-")
        assert figure.show({PAGEABLE: measured}, "cuda") == "0.50 [0.50–0.50]"
        assert figure.show({PAGEABLE: measured}, "local") == NOT_MEASURED


class TestMeasuring:
    def test_every_task_runs_and_is_right(self, monkeypatch):
        monkeypatch.setenv(VARIABLE, "local")
        machine, begun = HostMachine(2), []
        run = run_all(machine, PACE, shrink=SHRINK, begin=begun.append)
        assert list(run.measured) == begun == list(make_tasks(machine))
        hostile = {adversarial_name(dtype) for dtype in ADVERSARIAL}
        assert {*run.measured} > hostile
        for measured in run.measured.values():
            assert set(measured.wrong.values()) == {0}
            ours = ("cuda",) if measured.name in hostile else ("cuda", "local")
            assert measured.executors == dict.fromkeys(ours, "host")
            assert {len(times) for times in measured.times.values()} == {3}
        assert {*run.measured["resnet50"].times} == {"cuda", "local", COPY, LOOP, FOREACH}
        assert {*run.measured[SEVERAL].times} == {"cuda", "local", "fold"}
        assert run.notes == ("all GPUs, nccl: RuntimeError: no NCCL here",)
        assert {*run.measured[SMALL].enqueued} == {"cuda", "local"}
        assert {"cuda", "local"} <= {*machine.asked}
        assert os.environ[VARIABLE] == "local"
        assert machine.pins == 2
        assert run.wrong == 0

    def test_nccl_is_measured_where_it_can_be_used(self, monkeypatch):
        monkeypatch.setattr(tasks, "nccl_refusal", lambda _: "")
        task = make_tasks(HostMachine(2), SHRINK)[SEVERAL](HostMachine(2))
        assert [(contender.name, contender.executor) for contender in task.contenders][2] == (tasks.NCCL, "cuda")

    def test_adversarial_contributions_stay_what_they_are(self):
        tensors = AdversarialTensors(Work("w", ((100,),), devices=8), ["cpu"] * 8)
        tensors.name_owners()
        before = [tensor.clone() for tensor in tensors.columns[0]]
        tensors.clear()
        assert all(torch.equal(one, other) for one, other in zip(before, tensors.columns[0], strict=True))
        assert float(before[0][0]) == -float(before[4][0]) == 2.0**100

    def test_turns_last_equally_long(self):
        """20 ms: one call of 20 ms, and eight of 2.5 ms, of which the middle one counts."""
        tensors = Tensors(Work("w", ((1,),), devices=1), ["cpu"])
        now, calls = [0.0], dict.fromkeys(("slow", "fast"), 0)

        def contender(name, seconds):
            def call():
                now[0] += seconds
                calls[name] += 1

            return Contender(name, call, 1)

        machine = HostMachine()
        machine.on_gpu = lambda call: clocked(call, lambda: now[0])
        measured = measure(Task("w", tensors, (contender("slow", 0.02), contender("fast", 0.0025))), machine, PACE)
        assert [len(turn) for turn in measured.times["fast"]] == [8, 8, 8]
        assert calls == {"slow": 1 + 2 + 3 + 1, "fast": 1 + 2 + 24 + 1}
        assert measured.speedup("fast", "slow").median == pytest.approx(8)

    def test_a_wrong_element_is_counted(self):
        tensors = Tensors(Work("w", ((1000,), (3, 5)), devices=3), ["cpu"] * 3)

        def lossy():
            for first, second, _ in tensors.columns:
                first.add_(second)
                second.copy_(first)

        task = Task("w", tensors, (Contender("lossy", lossy, 1, results=in_place(tensors.columns)),))
        assert measure(task, HostMachine(), PACE).wrong == {"lossy": 2 * 3 * 1015}

    def test_one_element_is_enough(self):
        tensors = Tensors(Work("w", ((1001,),), dtype="bfloat16", devices=2), ["cpu"] * 2)
        calls = itertools.count(1)

        def fold():
            first, second = tensors.columns[0]
            first.add_(second)
            second.copy_(first)
            if next(calls) > 3:
                second.view(torch.int16)[-1] ^= 1

        task = Task("w", tensors, (Contender("fold", fold, 1, results=in_place(tensors.columns)),))
        assert measure(task, HostMachine(), PACE).wrong == {"fold": 1}

    def test_results_of_another_form_are_wrong_altogether(self):
        tensors = Tensors(Work("w", ((10,),), devices=1), ["cpu"])
        tensors.name_owners()
        (right,) = tensors.columns[0]
        assert tensors.count_wrong([[right]]) == 0
        assert tensors.count_wrong([[right.double()]]) == tensors.count_wrong([[right[:9]]]) == 10

    def test_a_task_without_memory_is_a_note(self, monkeypatch):
        def scarce(_shape, **_):
            message = "CUDA out of memory. Tried to allocate 2.00 GiB."
            raise torch.OutOfMemoryError(message)

        monkeypatch.setattr(torch, "zeros", scarce)
        run = run_all(HostMachine(), PACE, shrink=SHRINK, begin=lambda _: None)
        assert not run.measured
        assert f"{SMALL}: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB." in run.notes


@pytest.fixture
def program():
    spec = importlib.util.spec_from_file_location("benchmarks_gpu", ROOT / "benchmarks" / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestProgram:
    def test_measures_prints_and_writes(self, program, monkeypatch, tmp_path, capsys):
        monkeypatch.setattr(program, "CudaMachine", HostMachine)
        assert program.main(["--rounds", "2", "--shrink", str(SHRINK), "--output", str(tmp_path)]) == 0
        page, data = sorted(tmp_path.iterdir(), key=lambda path: path.suffix, reverse=True)
        assert page.suffix == ".md"
        assert page.read_text() in capsys.readouterr().out
        assert f"every tensor is 1/{SHRINK} as long" in page.read_text()
        read = json.loads(data.read_text())
        assert read["shrink"] == SHRINK
        assert [task["name"] for task in read["tasks"]] == list(make_tasks(HostMachine()))
        assert read["tasks"][0]["times_s"]["cuda"]["median"] == pytest.approx(0.02)

    def test_without_a_gpu_it_ends_with_2(self, program, monkeypatch, capsys, tmp_path):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert program.main(["--output", str(tmp_path)]) == 2
        assert "reports no GPU" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("option", ["--rounds", "--shrink"])
    def test_refuses_numbers_below_one(self, program, option, capsys):
        assert program.main([option, "0"]) == 2
        assert f"{option} got 0. It takes a whole number of at least 1." in capsys.readouterr().err

    def test_a_wrong_result_ends_with_1(self, program, monkeypatch, tmp_path):
        measured = found(wrong={"cuda": 1, "local": 0})
        monkeypatch.setattr(program, "CudaMachine", HostMachine)
        monkeypatch.setattr(program, "run_all", lambda *_, **__: GpuRun("", measured={measured.name: measured}))
        assert program.main(["--output", str(tmp_path)]) == 1


def test_a_page_shows_every_way(tmp_path):
    measured = found(enqueued={"cuda": rounds(40e-6)}, nbytes={"cuda": 3_000_000, "local": 160, COPY: 80})
    run = GpuRun("2026-01-02", {"GPUs": "Card"}, {"torch": "3"}, {measured.name: measured}, notes=("x: y",))
    text = make_page(run)
    assert "# GPUs, 2026-01-02\n\n- GPUs: Card\n- versions: torch 3\n" in text
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    name = measured.name
    assert [name, "cuda", "cuda", "3000.0 [2500.0–3500.0]", "1.0", "40", "0"] in cells
    assert [name, COPY, "-", "2500.0 [1750.0–3250.0]", "0.0", "-", "-"] in cells
    assert text.endswith("## Not measured\n\n- x: y\n")
    assert write(run, tmp_path, "page").read_text() == text
    assert isinstance(make_figures()[0], Figure)
