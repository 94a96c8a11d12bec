"""Change one operator or constant of the code at a time, and see whether the tests notice.

``make mutants``. The operators are cosmic-ray's. A sample of the places that they can change is drawn, each place once.
Each mutant is tried on a copy below ``build/mutants``, so that the checkout stays as it is. The tests of the changed
room run first, and the first that fails ends the run.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_and_test, mutate_code
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome

PACKAGE = Path("src/treefold")
BUILD = Path("build/mutants")
SURVIVORS = BUILD / "survived.json"
OUTCOMES = BUILD / "outcomes.jsonl"  # a line for each that was tried, so that a run which was cut short can go on
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
COPIED = (
    "src",
    "tests",
    "docs",
    "examples",
    "tools",
    "benchmarks",
    "conftest.py",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
)

#: The rooms that are changed, with the tests that notice first.
ROOMS = {
    "averaging": ["tests/averaging"],
    "calls": ["tests/api"],
    "engines": ["tests/engines"],
    "exact": ["tests/exact"],
    "execution": ["tests/execution", "tests/api/test_fast_path.py"],
    "fold.py": ["tests/api/test_fold.py", "tests/properties"],
    "group": ["tests/group/test_moves.py", "tests/group/test_ops.py", "tests/group/test_mismatches.py", "tests/group"],
    "group/bootstrap": ["tests/group/test_rendezvous.py", "tests/group/test_tickets.py", "tests/group"],
    "group/transport": ["tests/fake_network", "tests/group/test_faults.py", "tests/group"],
    "ops": ["tests/api"],
    "partials": ["tests/partials"],
    "plan": ["tests/plan"],
    "planners": ["tests/packing", "tests/planners/test_planners.py", "tests/planners"],
    "topology/choosing.py": ["tests/api/test_choose.py"],
    "topology/cost": ["tests/cost"],
    "topology/planning": ["tests/planners"],
    "topology/planning/tree_packing": [
        "tests/planners/test_tree_packing.py",
        "tests/planners/test_tree_packing_plans.py",
    ],
    "values": ["tests/api/test_values.py", "tests/properties/test_structures.py", "tests/api"],
}
#: Rooms with tests that start processes, which take minutes per mutant: only by --rooms, best with --own.
SLOW = ("averaging", "engines", "execution", "group", "group/bootstrap", "group/transport")
#: Files that are tested outside of their room's tests.
ELSEWHERE = {
    "execution/graphs.py": ["tests/tensorflow_frontend/test_compatibility.py"],
    "execution/native.py": ["tests/native"],
    "execution/program_walk.py": ["tests/hosts/test_exact_partials.py"],
    "group/bootstrap/memory_limits.py": ["tests/torch_frontend/test_process_group.py"],
    "group/collectives.py": ["tests/torch_frontend/test_process_group.py"],
    "group/transport/failures.py": ["tests/hosts/test_chaos.py"],
    "group/transport/exact_memory.py": ["tests/hosts/test_exact_partials.py"],
    "ops/grouped.py": ["tests/group/test_ops.py", "tests/group/test_mismatches.py"],
    "partials/partial_messages.py": ["tests/hosts/test_exact_partials.py"],
    "planners/direct.py": ["tests/planners/test_direct.py", "tests/planners/test_host_shares.py"],
}
TESTS = ["tests/plan", "tests/packing", "tests/cost", "tests/api", "tests/properties", "tests/planners"]
CASES = "3"  # Random examples per property: more of them would find the same mutants.
#: A mutant counts as endless if it takes this many times as long as the tests without it.
PATIENCE = 4

#: Operators of cosmic-ray that change more than one operator or constant, and are not used.
_LEFT_OUT = ("RemoveDecorator", "ExceptionReplacer", "VariableReplacer", "VariableInserter")


@dataclasses.dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one line."""

    spec: MutationSpec
    room: str
    before: str
    after: str

    @property
    def file(self) -> str:
        """Its path in the package."""
        return str(self.spec.module_path.relative_to(PACKAGE).as_posix())

    @property
    def name(self) -> tuple[str, str, str]:
        """The file in the package, and the line before and after: a name that stays when other lines change."""
        return self.file, self.before, self.after

    @property
    def tests(self) -> list[str]:
        """The tests that are the likeliest to notice, to be run first."""
        return [*ELSEWHERE.get(self.file, ()), *ROOMS[self.room]]

    @property
    def key(self) -> str:
        """A name that is unique among all mutants of this state of the code."""
        start = self.spec.start_pos
        return f"{self.spec.module_path}:{start[0]}:{start[1]} {self.spec.operator_name} {self.spec.occurrence}"

    def __str__(self) -> str:
        """Return it as lines of a diff, with its place in the code."""
        return f"{self.spec.module_path}:{self.spec.start_pos[0]}\n  - {self.before}\n  + {self.after}"


def find_places(room: str) -> Iterator[list[MutationSpec]]:
    """Yield the possible changes of a room's code, place by place."""
    root = PACKAGE / room
    for path in sorted(root.glob("*.py")) if root.is_dir() else [root]:
        source = path.read_text(encoding="utf-8")
        tree, unseen = get_ast(source), _unseen_ranges(source)
        places: dict[object, list[MutationSpec]] = {}
        for name in cosmic_ray.plugins.operator_names():
            if name.endswith(_LEFT_OUT):
                continue
            operator = cosmic_ray.plugins.get_operator(name)()
            found = (position for node in ast_nodes(tree) for position in operator.mutation_positions(node))
            for occurrence, (start, end) in enumerate(found):
                if not any(first <= start < last for first, last in unseen):
                    places.setdefault((start, end), []).append(MutationSpec(path, name, occurrence, start, end))
        yield from places.values()


def make_mutant(spec: MutationSpec, room: str) -> Mutant | None:
    """Return a change with the line that it changes, or None if it changes none."""
    source = spec.module_path.read_text(encoding="utf-8")
    operator = cosmic_ray.plugins.get_operator(spec.operator_name)()
    changed = mutate_code(source, operator, spec.occurrence).splitlines()
    for before, after in zip(source.splitlines(), changed, strict=False):
        if before != after:
            return Mutant(spec, room, before.strip(), after.strip())
    return None


def _unseen_ranges(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return where annotations begin and end: they are text in this code, and no test could see them change."""
    ranges = []
    for node in ast.walk(ast.parse(source)):
        for name in ("annotation", "returns"):
            inner = getattr(node, name, None)
            if isinstance(inner, ast.expr):
                ranges.append(
                    ((inner.lineno, inner.col_offset), (inner.end_lineno or 0, inner.end_col_offset or 0)),
                )
    return ranges


def draw_sample(rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Return ``count`` mutants of different places, the same for one seed and one state of the code."""
    drawing = random.Random(seed)  # noqa: S311 - nothing is secret here
    places = [(room, place) for room in rooms for place in find_places(room)]
    drawn = drawing.sample(places, min(count, len(places)))
    mutants = [make_mutant(drawing.choice(place), room) for room, place in drawn]
    return [mutant for mutant in mutants if mutant is not None]


def make_copy(number: int) -> Path:
    """Return a fresh copy of the code and its tests, with the native core that is installed here."""
    copy = BUILD / str(number)
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for name in COPIED:
        source = Path(name)
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, copy / name)
    find = "import treefold._native as native; print(native.__file__)"
    native = subprocess.run([sys.executable, "-c", find], capture_output=True, text=True, check=True)  # noqa: S603
    core = Path(native.stdout.strip())
    shutil.copy2(core, copy / PACKAGE / core.name)
    return copy.resolve()


def make_python() -> Path:
    """Return a Python with the packages of this one, but without its treefold."""
    home = (BUILD / "venv").resolve()
    venv.create(home, clear=True, symlinks=True)
    site = next(home.rglob("site-packages"))
    packages = [entry for entry in sys.path if "site-packages" in entry]
    (site / "packages.pth").write_text("\n".join(packages) + "\n", encoding="utf-8")
    return next(path for path in (home / "bin" / "python", home / "Scripts" / "python.exe") if path.exists())


def command_for(python: Path, tests: Sequence[str]) -> str:
    """Return the command that runs tests in this order, up to the first that fails."""
    return f"{python} -m pytest -q -x -p no:cacheprovider {' '.join(tests)}"


def enter(copy: Path) -> None:
    """Make this process, and the tests that it starts, use a copy."""
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy / "src"), "TREEFOLD_CASES": CASES}


def run_without_mutant(copy: Path, python: Path, tests: Sequence[str]) -> float:
    """Return the time of the tests without a mutant. The tests must pass, and write the bytecode that all runs read."""
    start = time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "TREEFOLD_CASES": CASES}
    command = command_for(python, tests).split()
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"The tests fail without any mutant:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return time.monotonic() - start


def try_one(mutant: Mutant, command: str, timeout_s: float) -> str:
    """Return "caught", "survived" or "timed out"."""
    result = mutate_and_test([mutant.spec], command, timeout_s)
    if result.worker_outcome is not WorkerOutcome.NORMAL:
        raise RuntimeError(f"{mutant}: {result.worker_outcome} {result.output}")
    if result.test_outcome is TestOutcome.SURVIVED:
        return "survived"
    return "timed out" if result.output == "timeout" else "caught"


def try_all(mutants: Sequence[Mutant], python: Path, arguments: argparse.Namespace) -> list[tuple[Mutant, str]]:
    """Return the outcome of every mutant, with several copies at work at once."""
    others = [] if arguments.own else TESTS
    first = make_copy(0)
    took_s = run_without_mutant(first, python, sorted({*others, *(test for one in mutants for test in one.tests)}))
    print(f"the tests take {took_s:.0f} s without a mutant", flush=True)
    copies = [first]
    for number in range(1, arguments.workers):  # with the bytecode
        shutil.rmtree(BUILD / str(number), ignore_errors=True)
        copies.append(Path(shutil.copytree(first, first.with_name(str(number)))))
    known = read_outcomes() if arguments.resume else {}
    outcomes = [(mutant, known[mutant.key]) for mutant in mutants if mutant.key in known]
    left = iter([mutant for mutant in mutants if mutant.key not in known])

    def work(copy: Path) -> None:
        with concurrent.futures.ProcessPoolExecutor(1, initializer=enter, initargs=(copy,)) as process:
            for mutant in left:  # a list's iterator may be shared by threads
                command = command_for(python, [*mutant.tests, *others])
                outcomes.append((mutant, process.submit(try_one, mutant, command, PATIENCE * took_s).result()))
                lines.write(json.dumps([mutant.key, outcomes[-1][1]]) + "\n")
                print(f"[{len(outcomes)}/{len(mutants)}] {outcomes[-1][1]}: {mutant}", flush=True)

    with (
        OUTCOMES.open("a" if arguments.resume else "w", encoding="utf-8", buffering=1) as lines,
        concurrent.futures.ThreadPoolExecutor(len(copies)) as threads,
    ):
        list(threads.map(work, copies))
    return outcomes


def read_outcomes() -> dict[str, str]:
    """Return the outcomes of the mutants of an earlier run."""
    if not OUTCOMES.exists():
        return {}
    return dict(json.loads(line) for line in OUTCOMES.read_text(encoding="utf-8").splitlines())


def read_equivalent() -> set[tuple[str, str, str]]:
    """Return the names of the changes that no test can notice."""
    rows = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["mutant"]
    return {(row["file"], row["before"], row["after"]) for row in rows}


def read_survivors() -> set[tuple[str, str, str]]:
    """Return the names of the mutants that the last run did not catch."""
    if not SURVIVORS.exists():
        sys.exit(f"--again needs {SURVIVORS}, which a run without it writes.")
    return {(file, before, after) for file, before, after in json.loads(SURVIVORS.read_text(encoding="utf-8"))}


def report(outcomes: Sequence[tuple[Mutant, str]]) -> int:
    """Print the outcomes; return 1 if fewer than 95 % of the mutants that change the result were noticed."""
    by_outcome = {name: [mutant for mutant, got in outcomes if got == name] for name in ("survived", "timed out")}
    for name, mutants in by_outcome.items():
        print(f"\n{name}: {len(mutants)}")
        for mutant in sorted(mutants, key=str):
            print(mutant)
    SURVIVORS.write_text(json.dumps([mutant.name for mutant in by_outcome["survived"]], indent=1), encoding="utf-8")
    survived, slow = (len(mutants) for mutants in by_outcome.values())
    caught = len(outcomes) - survived - slow
    share = (caught + slow) / max(len(outcomes), 1)
    print(f"\n{len(outcomes)} mutants: {caught} caught, {survived} survived, {slow} timed out: {100 * share:.1f} %")
    return 0 if share >= 0.95 else 1  # noqa: PLR2004 - the goal


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=400, help="mutants in all")
    parser.add_argument("--seed", type=int, default=1, help="another seed is another sample")
    parser.add_argument(
        "--rooms",
        nargs="+",
        choices=ROOMS,
        default=[room for room in ROOMS if room not in SLOW],
        help="what is changed",
    )
    parser.add_argument("--own", action="store_true", help="run the tests of the changed room only: quicker, stricter")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="copies that are tried at once")
    parser.add_argument("--again", action="store_true", help="try those alone that survived the last run")
    parser.add_argument("--resume", action="store_true", help="go on with a run of this code that was cut short")
    parser.add_argument("--list", action="store_true", help="print the sample, and try nothing")
    return parser.parse_args()


def main() -> int:
    """Draw the sample, try it in several copies at once, and report."""
    arguments = read_arguments()
    known, again = read_equivalent(), read_survivors() if arguments.again else None
    sample = draw_sample(arguments.rooms, arguments.count, arguments.seed)
    mutants = [m for m in sample if m.name not in known and (again is None or m.name in again)]
    print(
        f"{len(mutants)} mutants of seed {arguments.seed}; {len(sample) - len(mutants)} more are left out", flush=True
    )
    if arguments.list:
        print(*mutants, sep="\n")
        return 0
    return report(try_all(mutants, make_python(), arguments))


if __name__ == "__main__":
    sys.exit(main())
