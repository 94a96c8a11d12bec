"""Run TensorFlow's and Keras's own tests of distribution with treefold's classes in place of TensorFlow's.

Run ``python tools/tensorflow_tests.py ../tensorflow ../keras``. The folders are copies of TensorFlow's and Keras's
sources, of the installed versions; their packages leave most tests out. Each suite runs twice, in a process of its own:
with TensorFlow's classes, and with ours. Tests that pass only with TensorFlow's are listed and make the exit code 1.
Tests of several workers need ``pip install portpicker dill tblib``; without these TensorFlow skips most of them. With
too few GPUs it skips tests that need them.

The files are run unchanged, but for one word. ``AllReduceCrossDeviceOps("ring")`` is hierarchical copy in TensorFlow,
as every unknown name is, and an error in treefold. Our classes replace the four of TensorFlow wherever it looks them
up. A ``MirroredStrategy`` that would use TensorFlow's collective ops gets them, too.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

SUITES = (
    "tensorflow/python/distribute/v1/cross_device_ops_test.py",
    "tensorflow/python/distribute/strategy_common_test.py",
    "tensorflow/python/distribute/strategy_gather_test.py",
    "tensorflow/python/distribute/mirrored_strategy_test.py",
    "tensorflow/python/distribute/values_test.py",
    "keras/src/backend/tensorflow/distribute_test.py",
    "keras/src/backend/tensorflow/optimizer_distribute_test.py",
)
RING = ('AllReduceCrossDeviceOps("ring")', 'AllReduceCrossDeviceOps("hierarchical_copy")')
CLASSES = ("ReductionToOneDevice", "AllReduceCrossDeviceOps", "HierarchicalCopyAllReduce", "NcclAllReduce")
OUTCOME = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+)", re.MULTILINE)
STARTED = re.compile(r"^\[ RUN +\] (\S+)", re.MULTILINE)
REACHED = re.compile(r"^treefold was called (\d+) times", re.MULTILINE)

Outcomes = dict[str, str]


def put_ours_in_place() -> None:
    """Make TensorFlow use treefold's classes wherever it would use its own, and count their calls."""
    import tensorflow as tf  # noqa: PLC0415 - the process that compares needs none of this
    from tensorflow.python.distribute import cross_device_ops, mirrored_strategy  # noqa: PLC0415

    import treefold.tensorflow as ours  # noqa: PLC0415

    for name in CLASSES:
        for module in (cross_device_ops, tf.distribute):
            if hasattr(module, name):
                setattr(module, name, getattr(ours, name))
    initialize = mirrored_strategy.MirroredExtended.__init__

    def initialize_with_ours(
        extended: Any, container: Any, devices: Any = None, cross_device_ops_given: Any = None, **kinds: Any
    ) -> None:
        given = kinds.pop("cross_device_ops", cross_device_ops_given)
        initialize(extended, container, devices=devices, cross_device_ops=given, **kinds)
        if given is None and isinstance(extended._cross_device_ops, cross_device_ops.CollectiveAllReduce):  # noqa: SLF001
            extended._cross_device_ops = ours.HierarchicalCopyAllReduce()  # noqa: SLF001

    mirrored_strategy.MirroredExtended.__init__ = initialize_with_ours
    calls: Counter[str] = Counter()
    for name in ("reduce", "batch_reduce", "broadcast", "_gather"):
        setattr(ours.CrossDeviceOps, name, counted(getattr(ours.CrossDeviceOps, name), calls))
    atexit.register(lambda: print(f"treefold was called {calls.total()} times", file=sys.stderr))


def counted(method: Callable[..., Any], calls: Counter[str]) -> Callable[..., Any]:
    """Return the method with a counter of its calls."""

    @functools.wraps(method)
    def count(*args: Any, **kinds: Any) -> Any:
        calls[method.__name__] += 1
        return method(*args, **kinds)

    return count


def run_inside(whose: str, path: str, argv: list[str]) -> None:
    """Run a test file as the main module of this process, which ends with it.

    ``argv``: the executable that starts this again, and its arguments. TensorFlow's tests of several workers start
    processes by it.
    """
    text = Path(path).read_text(encoding="utf-8")
    if whose == "treefold":
        put_ours_in_place()
        text = text.replace(*RING)
    module = types.ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    sys.argv = argv
    exec(compile(text, path, "exec"), module.__dict__)  # noqa: S102 - that is what this is for
    # TensorFlow's files end the process themselves; Keras's leave that to whoever runs them.
    from absl.testing import absltest  # noqa: PLC0415

    absltest.main()


def run_suite(path: Path, whose: str, *, timeout_s: float, logs: Path) -> Outcomes:
    """Run one test file with one of the two sets of classes, print the outcome, and return that of each test."""
    name = f"{path.stem}.{whose}"
    executable, log = logs / name, logs / f"{name}.log"
    command = [sys.executable, str(Path(__file__).resolve()), "--inside", whose, str(path)]
    executable.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$0" "$@"\n', encoding="utf-8")
    executable.chmod(0o755)
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
    start, ending = time.perf_counter(), ""
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(  # noqa: S603 - written above
            [str(executable)], stdout=output, stderr=output, env=os.environ | environment, start_new_session=True
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            ending = f", not finished after {timeout_s:g} s"
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # its workers, too
            process.wait()
    outcomes = read_outcomes(log.read_text(encoding="utf-8", errors="replace"))
    count = Counter(outcomes.values())
    told = ", ".join(f"{count[word]} {word.lower()}" for word in ("OK", "FAILED", "SKIPPED", "UNFINISHED"))
    reached = REACHED.findall(log.read_text(encoding="utf-8", errors="replace"))
    called = f", {sum(map(int, reached))} calls of treefold" if reached else ""
    print(f"{path.stem:28} {whose:10} {told}{called}{ending}, {time.perf_counter() - start:.0f} s", flush=True)
    return outcomes


def read_outcomes(log: str) -> Outcomes:
    """Return the outcome of each test in the output of absl's runner; a test without one was running at the end."""
    outcomes = dict.fromkeys(STARTED.findall(log), "UNFINISHED")
    for outcome, test in OUTCOME.findall(log):
        # A test of several subtests has one line for each that failed, and is then not OK.
        if outcomes.get(test) != "FAILED":
            outcomes[test] = outcome
    return outcomes


def find(suite: str, folders: list[Path]) -> Path:
    """Return the file of a suite in the first folder that has it."""
    for folder in folders:
        if (folder / suite).is_file():
            return (folder / suite).resolve()
    sys.exit(
        f"{suite} is in none of {', '.join(map(str, folders))}. Name the copies of TensorFlow's and Keras's sources."
    )


def main(arguments: list[str]) -> int:
    """Run the suites and list the tests that pass only with TensorFlow's classes; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sources", nargs="+", type=Path, help="folders of TensorFlow's and Keras's sources")
    parser.add_argument("-k", "--keep", default="", help="run only the suites whose path holds this")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds that one run of a suite may take")
    parser.add_argument("--logs", type=Path, help="a folder that keeps what the tests printed")
    options = parser.parse_args(arguments)
    suites = [find(suite, options.sources) for suite in SUITES if options.keep in suite]
    lost, passed = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        logs = (options.logs or Path(scratch)).resolve()
        logs.mkdir(parents=True, exist_ok=True)
        for path in suites:
            theirs, ours = (
                run_suite(path, whose, timeout_s=options.timeout, logs=logs) for whose in ("tensorflow", "treefold")
            )
            passed += sum(outcome == "OK" for outcome in ours.values())
            lost += [
                f"{path.stem}: {test}: {ours.get(test, 'not run')}"
                for test, outcome in theirs.items()
                if outcome == "OK" and ours.get(test) != "OK"
            ]
    print(f"{passed} tests pass with treefold's classes; {len(lost)} pass with TensorFlow's only")
    for line in lost:
        print(f"  {line}")
    return 1 if lost or not passed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        run_inside(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        sys.exit(main(sys.argv[1:]))
