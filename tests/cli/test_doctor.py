"""``treefold doctor`` on machines that lack something, are held down, or are broken."""

import json
import pathlib
import shutil
import subprocess
import sys
from importlib import machinery, metadata

import pytest

import treefold as package
from treefold.cli import doctor as looks
from treefold.cli.doctor import Findings, Problem
from treefold.cli.gpus import Gpus, find_gpus, torch_build
from treefold.execution import native


@pytest.fixture(autouse=True)
def _fresh_settings(monkeypatch):
    """Let every test read the environment anew, and put back what it read."""
    threads = native.num_threads()
    native.level.cache_clear()
    yield
    monkeypatch.undo()
    native.level.cache_clear()
    native.set_num_threads(threads)


def found(look, **arguments):
    findings = Findings()
    look(findings, **arguments)
    return findings


class TestDoctor:
    def test_says_first_whether_all_is_well(self, treefold, monkeypatch):
        monkeypatch.setattr(looks, "_LOOKS", (looks._versions, looks._environment))  # this machine may lack more
        monkeypatch.setenv("TREEFOLD_THREADS", "3")
        outcome = treefold("doctor")
        lines = outcome.out.splitlines()
        assert (outcome.code, lines[0]) == (0, "1 thing to mend.")
        assert lines[2].split() == ["what", "found"]
        at = lines.index("To mend:")
        assert lines[at + 1] == "- treefold knows no variable TREEFOLD_THREADS; TREEFOLD_NUM_THREADS may be meant."
        assert lines[at + 2] == "  unset TREEFOLD_THREADS"

    def test_says_the_same_in_json(self, treefold):
        plain = json.loads(treefold("doctor", "--json").out)
        assert plain["ok"] == (plain["to_mend"] == [])
        assert plain["facts"]["treefold"] == package.__version__
        assert plain["facts"]["NumPy"] == metadata.version("numpy")
        assert set(plain) == {"ok", "summary", "facts", "to_mend", "not_installed"}

    def test_imports_no_framework(self):
        code = (
            "import sys; from treefold.cli.doctor import examine; examine();"
            "print({'torch', 'tensorflow', 'jax', 'scipy', 'sklearn', 'matplotlib'} & set(sys.modules))"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
        assert run.stdout == "set()\n"

    def test_reports_what_it_cannot_look_at(self, monkeypatch):
        monkeypatch.setattr(looks, "_version", lambda _: int("torn"))
        findings = looks.examine()
        assert findings.facts["frameworks"] == "cannot be told"
        assert findings.facts["treefold"] == package.__version__
        assert (
            Problem(
                "Looking at frameworks failed with ValueError: invalid literal for int() with base 10: 'torn'.",
                "report it, with this output",
            )
            in findings.to_mend
        )

    @pytest.mark.parametrize(
        ("to_mend", "not_installed", "summary"),
        [
            (0, 0, "Everything that this machine can use is in place"),
            (0, 1, "Everything that this machine can use is in place, but for 1 extra not installed"),
            (1, 4, "1 thing to mend"),
            (3, 0, "3 things to mend"),
        ],
    )
    def test_counts(self, to_mend, not_installed, summary):
        one = Problem("What.", "mend")
        assert Findings({}, [one] * to_mend, [one] * not_installed).summary == summary


class TestNativeCore:
    def test_that_cannot_be_loaded_is_told_with_the_reason(self, tmp_path):
        """A module for another system is there and does not load; everything else works, slowly."""
        house = tmp_path / "treefold"
        shutil.copytree(
            pathlib.Path(package.__file__).parent, house, ignore=shutil.ignore_patterns("_native*", "__pycache__")
        )
        (house / f"_native{machinery.EXTENSION_SUFFIXES[0]}").write_bytes(b"not a library")
        # An editable installation finds its own modules before those on the path.
        program = (
            "import runpy, sys\n"
            "sys.meta_path = [one for one in sys.meta_path if not type(one).__name__.startswith('ScikitBuild')]\n"
            f"sys.path.insert(0, {str(tmp_path)!r})\n"
            "sys.argv = ['treefold', 'doctor', '--json']\n"
            "runpy.run_module('treefold.cli', run_name='__main__')\n"
        )
        run = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
        )
        plain = json.loads(run.stdout)
        assert plain["facts"]["native core"].startswith("not loaded (")
        [problem] = [one for one in plain["to_mend"] if "native core" in one["what"]]
        assert problem["what"].startswith("The native core is not loaded (")
        assert problem["mend"] == (
            "pip install --force-reinstall --no-deps --no-cache-dir treefold (in a checkout: . instead of treefold)"
        )

    def test_that_is_not_there_is_to_be_built(self, monkeypatch):
        monkeypatch.setattr(native, "HAS_NATIVE", False)
        monkeypatch.setitem(sys.modules, "treefold._native", None)
        [problem] = found(looks._native_core).to_mend
        assert problem.what.startswith("The native core is not installed: results are the same, but slower")


class TestVectorLevel:
    def test_that_is_held_down_is_to_be_mended(self, monkeypatch):
        widest = native.vector_levels()[0]
        monkeypatch.setenv("TREEFOLD_VECTOR_LEVEL", "plain")
        what = f"TREEFOLD_VECTOR_LEVEL keeps the native core at plain; this machine can run {widest}."
        assert found(looks._vector_level).to_mend == [Problem(what, "unset TREEFOLD_VECTOR_LEVEL")]

    def test_that_there_is_not_is_told_once(self, monkeypatch):
        monkeypatch.setenv("TREEFOLD_VECTOR_LEVEL", "wide")
        [problem] = [one for one in looks.examine().to_mend if "VECTOR" in one.what]
        assert problem.what.startswith("TREEFOLD_VECTOR_LEVEL is 'wide' in the environment. It takes one of ")
        assert problem.mend == "unset TREEFOLD_VECTOR_LEVEL"


class TestThreads:
    @pytest.fixture(autouse=True)
    def _eight_processors(self, monkeypatch):
        monkeypatch.setattr(looks.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)

    def test_as_many_as_processors_are_well(self, tmp_path):
        native.set_num_threads(8)
        assert found(looks._threads, quota=tmp_path / "none").to_mend == []

    @pytest.mark.parametrize("threads", [1, 16])
    def test_too_few_and_too_many_are_to_be_mended(self, tmp_path, threads):
        native.set_num_threads(threads)
        what = f"A reduction uses {threads} thread{'s' * (threads > 1)}, and this process may use 8 processors."
        assert found(looks._threads, quota=tmp_path / "none").to_mend == [Problem(what, "unset TREEFOLD_NUM_THREADS")]

    def test_of_a_container_are_bounded_by_its_time(self, tmp_path):
        native.set_num_threads(8)
        quota = tmp_path / "cpu.max"
        quota.write_text("200000 100000\n")
        what = "A reduction uses 8 threads, and this process may use the time of 2 of 8 processors."
        assert found(looks._threads, quota=quota).to_mend == [Problem(what, "export TREEFOLD_NUM_THREADS=2")]
        native.set_num_threads(2)
        assert found(looks._threads, quota=quota).to_mend == []
        quota.write_text("max 100000\n")
        native.set_num_threads(8)
        assert found(looks._threads, quota=quota).to_mend == []


class TestFrameworks:
    def test_that_are_too_old_are_to_be_upgraded(self, monkeypatch):
        monkeypatch.setattr(metadata, "requires", lambda _: ["numpy>=2.0", 'torch>=2.5; extra == "torch"'])
        monkeypatch.setattr(looks, "_version", {"numpy": "2.10.1", "torch": "2.4.1+cpu"}.get)
        [problem] = found(looks._frameworks).to_mend
        assert problem.what == "PyTorch 2.4.1+cpu is older than 2.5, the oldest that treefold works with."
        assert problem.mend == 'pip install --upgrade "torch>=2.5"'

    def test_that_are_missing_are_no_fault(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "jax", None)
        findings = found(looks._frameworks)
        assert findings.facts["JAX"] == "not installed"
        assert [one for one in findings.to_mend if "JAX" in one.what] == []


class TestExtras:
    def test_that_are_missing_are_listed_with_their_command(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "scipy", None)
        missing = found(looks._extras).not_installed
        assert Problem("For treefold plan and simulate: scipy.", 'pip install "treefold[planner]"') in missing


class TestGpus:
    @pytest.fixture
    def proc(self, tmp_path):
        """Return NVIDIA's folder of a machine with two GPUs."""
        for number in range(2):
            slot = tmp_path / "gpus" / f"0000:{number}1:00.0"
            slot.mkdir(parents=True)
            (slot / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\n")
        (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Fri\n")
        return tmp_path

    def test_of_nvidia_are_read_from_the_driver(self, proc):
        assert find_gpus(proc=proc) == Gpus("NVIDIA", ("NVIDIA H200", "NVIDIA H200"), "570.86.10")

    def test_of_amd_are_counted(self, tmp_path):
        """The driver lists processors, too; they have no number as a GPU."""
        for number, gpu in enumerate(["0", "51110", "2054"]):
            node = tmp_path / "topology" / "nodes" / str(number)
            node.mkdir(parents=True)
            (node / "gpu_id").write_text(f"{gpu}\n")
        assert find_gpus(proc=tmp_path / "none", kfd=tmp_path, wsl=tmp_path / "none") == Gpus("AMD", ("AMD", "AMD"), "")

    def test_under_wsl_are_those_of_nvidia_smi(self, tmp_path, monkeypatch):
        """Its driver shows no files; elsewhere the program alone shows no GPU, as on a login node."""
        monkeypatch.setattr(shutil, "which", lambda _: "/usr/lib/wsl/lib/nvidia-smi")
        assert find_gpus(proc=tmp_path, kfd=tmp_path, wsl=tmp_path) == Gpus("NVIDIA", (), "")
        assert find_gpus(proc=tmp_path, kfd=tmp_path, wsl=tmp_path / "none") is None

    def test_that_are_not_there_are_no_fault(self, tmp_path, monkeypatch):
        assert find_gpus(proc=tmp_path, kfd=tmp_path, wsl=tmp_path / "none") is None
        monkeypatch.setattr(looks, "find_gpus", lambda: None)
        findings = found(looks._graphics_processors)
        assert (findings.facts, findings.to_mend) == ({"GPUs": "none that a driver reports"}, [])

    def test_that_nothing_installed_can_use_are_to_be_mended(self, proc, monkeypatch):
        """The library that shows their links is missing, and PyTorch is the CPU's."""
        monkeypatch.setattr(looks, "find_gpus", lambda: find_gpus(proc=proc))
        monkeypatch.setattr(looks, "torch_build", lambda: "CPU")
        monkeypatch.setitem(sys.modules, "pynvml", None)
        findings = found(looks._graphics_processors)
        assert findings.facts["GPUs"] == "2 × NVIDIA H200 (driver 570.86.10)"
        assert [one.mend.partition(",")[0] for one in findings.to_mend] == [
            'pip install "treefold[nvml]"',
            "pip install --upgrade torch",
        ]

    @pytest.mark.parametrize(
        ("cuda", "hip", "build"),
        [("'12.8'", "None", "CUDA 12.8"), ("None", "'6.4.2'", "ROCm 6.4.2"), ("None", "None", "CPU")],
    )
    def test_builds_of_pytorch_are_told_apart(self, tmp_path, monkeypatch, cuda, hip, build):
        """The build is read from the file that PyTorch writes about itself."""
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit\n")
        (tmp_path / "torch" / "version.py").write_text(
            f"cuda: Optional[str] = {cuda}\ngit_version = 'c'\nhip: Optional[str] = {hip}\n"
        )
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        assert torch_build() == build


class TestSharedMemory:
    @pytest.mark.parametrize(
        ("text", "fact"),
        [
            (
                "always within_size advise [never] deny force\n",
                "pages of 4 KiB; for huge ones: echo advise | sudo tee {}",
            ),
            ("always within_size [advise] never deny force\n", "huge pages"),
            ("[always] within_size advise never deny force\n", "huge pages"),
        ],
    )
    def test_says_how_groups_get_huge_pages(self, tmp_path, text, fact):
        """The command is the one to paste; nothing counts as broken."""
        setting = tmp_path / "shmem_enabled"
        setting.write_text(text)
        findings = found(looks._shared_memory, setting=setting)
        assert (findings.facts, findings.to_mend) == ({"shared memory": fact.format(setting)}, [])

    def test_is_not_mentioned_where_the_system_has_no_such_setting(self, tmp_path):
        assert found(looks._shared_memory, setting=tmp_path / "none").facts == {}
