"""Run PyTorch's own tests of process groups with gloo, and with the backend "treefold" in gloo's place.

Run ``python tools/torch_tests.py``, after ``pip install expecttest``, which PyTorch's tests use. The tests are those of
``torch.testing._internal.distributed.distributed_test``, which come with PyTorch. PyTorch runs them for gloo
(``BACKEND=gloo``), on three processes. Here each runs twice: with gloo, and with ``"gloo"`` replaced by ``"treefold"``
in ``init_process_group`` and ``new_group``. Tests that ran and passed are counted, and tests that pass only with gloo
are listed. With ``--only WORD``, only tests with the word in their name run; with ``--jobs 2``, two run at a time. The
exit code is 1 if less than 95 % of what passes with gloo passes here.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

MODULE = "torch.testing._internal.distributed.distributed_test"
#: What is not counted, by a word of a test's name, and why.
LEFT_OUT = {
    "monitored_barrier": "asks for gloo's class in C++",
    "barrier_timeout": "asks for gloo's words",
    "sparse_all_reduce": "sparse tensors are refused",
    "backend_group": "the name of the backend",
    "Backend_enum": "the name of the backend",
    "get_backend": "the name of the backend",
    "profil": "names of profiler events",
}
SHARE = 0.95
PATIENCE_S = 180


def run(backend: str, names: list[str]) -> dict[str, str]:
    """Return the outcome of each test: "passed", "skipped", or its output."""
    outcomes: dict[str, str] = {}
    while left := [name for name in names if name not in outcomes]:
        started, told = left[0], ""
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--these", *left, "--backend", backend]
            process = subprocess.Popen(  # noqa: S603 - this very program
                command, env=_environment(folder), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            for line in process.stdout or ():
                word, _, told = line.strip().partition(" ")
                if word == "RUN":
                    started = told
                elif word == "OUTCOME":
                    outcomes[started] = told
            if process.wait() and started not in outcomes:  # killed by its alarm, or crashed
                outcomes[started] = f"ended with {process.returncode}"
    return outcomes


def _environment(folder: str) -> dict[str, str]:
    told = {"TEMP_DIR": folder, "TMPDIR": folder, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
    return {**os.environ, **told, "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(PATIENCE_S // 2)}


def put_ours_in_place() -> None:
    """Make treefold's process groups wherever a test asks for gloo's."""
    from torch import distributed  # noqa: PLC0415 - the process that counts needs no PyTorch
    from torch.distributed import distributed_c10d  # noqa: PLC0415 - as above

    import treefold.torch  # noqa: F401, PLC0415 - registers the backend

    for name in ("init_process_group", "new_group"):
        make = getattr(distributed, name)

        def made(*arguments: Any, make: Any = make, **named: Any) -> Any:
            arguments = tuple("treefold" if one == "gloo" else one for one in arguments)
            named = {key: "treefold" if one == "gloo" else one for key, one in named.items()}
            return make(*arguments, **named)

        for module in (distributed, distributed_c10d):
            setattr(module, name, made)


def be_runner(backend: str, names: list[str]) -> None:
    """Run tests one after the other, and report the outcome of each; end if one hangs."""
    import unittest  # noqa: PLC0415 - as above

    if backend == "treefold":
        put_ours_in_place()
    kind = _tests()
    for name in names:
        print(f"\nRUN {name}", flush=True)  # PyTorch leaves lines without their ends
        signal.alarm(PATIENCE_S)
        result = unittest.TestResult()
        kind(name).run(result)
        said = "\n".join(text for _, text in (*result.errors, *result.failures)).strip()
        reasons = [line.strip() for line in said.splitlines() if "Error" in line] or [said[-200:]]
        outcome = "skipped" if result.skipped else "passed" if result.wasSuccessful() else " | ".join(reasons[-3:])
        print(f"\nOUTCOME {' '.join(outcome.split())[:600]}", flush=True)


def _tests() -> Any:
    """Return PyTorch's class of tests with forked ranks: importing PyTorch in each would take minutes."""
    import importlib  # noqa: PLC0415 - as above

    module = importlib.import_module(MODULE)
    bases = (module.TestDistBackend, module.DistributedTest._DistTestBase)  # noqa: SLF001 - PyTorch's tests do so

    def set_up(test: Any) -> None:
        module.TestDistBackend.setUp(test)
        test._start_processes(multiprocessing.get_context("fork").Process)  # noqa: SLF001 - as above

    return type("Tests", bases, {"setUp": set_up})


def run_in_jobs(backend: str, names: list[str], jobs: int) -> dict[str, str]:
    """Return the outcomes of tests, some of which run at a time."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        parts = pool.map(lambda job: run(backend, names[job::jobs]), range(jobs))
        return {name: outcome for part in parts for name, outcome in part.items()}


def main() -> int:
    """Run the tests with both backends, and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", help="tests whose names have this word")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (2)")
    parser.add_argument("--these", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--backend", default="gloo", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    os.environ.update({"BACKEND": "gloo", "WORLD_SIZE": "3"})
    if asked.these:
        be_runner(asked.backend, asked.these)
        return 0
    names = [name for name in dir(_tests()) if name.startswith("test_") and asked.only in name]
    names = [name for name in names if not any(word in name for word in LEFT_OUT)]
    gloos = run_in_jobs("gloo", names, asked.jobs)
    passed = [name for name in names if gloos[name] == "passed"]
    ours = run_in_jobs("treefold", passed, asked.jobs)
    missed = {name: outcome for name, outcome in ours.items() if outcome != "passed"}
    for name, outcome in gloos.items():
        if outcome not in {"passed", "skipped"}:
            print(f"with gloo {name}: {outcome}")
    for name, outcome in missed.items():
        print(f"{name}: {outcome}")
    print(f"{list(gloos.values()).count('skipped')} of {len(names)} tests were skipped with gloo.")
    print(f"{len(passed)} tests ran and passed with gloo, {len(passed) - len(missed)} of them with treefold.")
    return int(len(passed) - len(missed) < SHARE * len(passed))


if __name__ == "__main__":
    sys.exit(main())
