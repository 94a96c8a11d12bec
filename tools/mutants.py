"""Change one operator or constant of the code at a time, and see whether the tests notice.

``make mutants``. The operators are cosmic-ray's. A sample of the places that they can change is drawn, each place once.
Each mutant is tried on a copy below ``build/mutants``, so that the checkout stays as it is. Every file of tests runs
once without a mutant, which shows how long its tests take and which lines they run. A mutant is tried with the files
that run its line: first with the quickest case of every test, then with all others. The first that fails ends it.
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
import signal
import subprocess
import sys
import tomllib
import venv
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import cosmic_ray.plugins
import coverage
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.work_item import MutationSpec

PACKAGE = Path("src/treefold")
BUILD = Path("build/mutants")
SURVIVORS = BUILD / "survived.json"
OUTCOMES = BUILD / "outcomes.jsonl"  # a line for each that was tried, so that a run which was cut short can go on
SUITE = BUILD / "suite.json"  # what the tests showed without a mutant, for the same
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

#: The rooms that are changed, with the tests that may notice.
ROOMS = {
    "averaging": ["tests/averaging"],
    "calls": ["tests/api"],
    "engines": ["tests/engines", "tests/hosts/test_bits.py"],
    "exact": ["tests/exact"],
    "execution": [
        "tests/execution",
        "tests/api/test_fast_path.py",
        "tests/native",
        "tests/tensorflow_frontend/test_compatibility.py",
        "tests/hosts/test_exact_partials.py",
    ],
    "fold.py": ["tests/api/test_fold.py", "tests/properties"],
    "group": ["tests/group", "tests/torch_frontend/test_process_group.py"],
    "group/bootstrap": ["tests/group", "tests/torch_frontend/test_process_group.py"],
    "group/transport": [
        "tests/fake_network",
        "tests/group",
        "tests/hosts/test_chaos.py",
        "tests/hosts/test_exact_partials.py",
    ],
    "ops": ["tests/api", "tests/group/test_ops.py", "tests/group/test_mismatches.py"],
    "partials": ["tests/partials", "tests/hosts/test_exact_partials.py"],
    "plan": ["tests/plan"],
    "planners": ["tests/packing", "tests/planners"],
    "topology/choosing.py": ["tests/api/test_choose.py"],
    "topology/cost": ["tests/cost"],
    "topology/planning": ["tests/planners"],
    "topology/planning/tree_packing": ["tests/planners"],
    "values": ["tests/properties", "tests/api"],
}
#: Rooms with tests that start processes: only by --rooms.
SLOW = ("averaging", "engines", "execution", "group", "group/bootstrap", "group/transport")
TESTS = ["tests/plan", "tests/packing", "tests/cost", "tests/api", "tests/properties", "tests/planners"]
CASES = "3"  # Random examples per property: more of them would find the same mutants.
#: A mutant counts as endless if it takes this many times as long as the tests without it, and this many seconds more.
PATIENCE, PATIENCE_S = 4, 30
_NO_TESTS = 5  # pytest's exit status where a file is skipped as a whole
SLOW_S = 3.0  # a case that takes longer is none of the quick ones

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
    def source(self) -> str:
        """The file's text with the change."""
        operator = cosmic_ray.plugins.get_operator(self.spec.operator_name)()
        return str(mutate_code(self.spec.module_path.read_text(encoding="utf-8"), operator, self.spec.occurrence))

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
    lines = spec.module_path.read_text(encoding="utf-8").splitlines()
    for before, after in zip(lines, Mutant(spec, room, "", "").source.splitlines(), strict=False):
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
    begin = "import os; os.environ.get('COVERAGE_PROCESS_START') and __import__('coverage').process_startup()\n"
    (site / "zz_coverage.pth").write_text(begin, encoding="utf-8")  # by its name after the packages
    return next(path for path in (home / "bin" / "python", home / "Scripts" / "python.exe") if path.exists())


@dataclasses.dataclass(frozen=True, slots=True)
class Copy:
    """A copy of the code and its tests, in which one run of tests after another takes place."""

    root: Path
    python: Path

    def run(self, tests: Sequence[str], timeout_s: float | None = None, **environment: str) -> str:
        """Run tests up to the first that fails; return "survived", "caught" or "timed out"."""
        if not tests:
            return "survived"
        chosen = self.root / "tests.txt"
        chosen.write_text("\n".join(tests), encoding="utf-8")
        command = [
            str(self.python),
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-p",
            "pytest_times",
            f"@{chosen}",
        ]
        paths = os.pathsep.join(str(self.root / name) for name in ("src", "tools"))
        home = Path(sys.prefix)  # has MPICH's launcher and libraries, if that is installed
        variables = os.environ | {
            "PYTHONPATH": paths,
            "PATH": os.pathsep.join([str(home / "bin"), os.environ.get("PATH", "")]),
            "LD_LIBRARY_PATH": str(home / "lib"),
            "TREEFOLD_CASES": CASES,
            **environment,
        }
        with (self.root / "pytest.log").open("w", encoding="utf-8") as log:
            pytest = subprocess.Popen(  # noqa: S603 - our own command
                command, cwd=self.root, env=variables, stdout=log, stderr=log, start_new_session=True
            )
            try:
                return "survived" if pytest.wait(timeout_s) in {0, _NO_TESTS} else "caught"
            except subprocess.TimeoutExpired:
                os.killpg(pytest.pid, signal.SIGKILL)
                pytest.wait()
                return "timed out"


@dataclasses.dataclass(frozen=True, slots=True)
class Suite:
    """The tests as they ran without a mutant.

    Attributes:
        seconds: How long each test took, by its name for pytest.
        lines: The lines that ran, by the file of tests and the file of the package.

    """

    seconds: dict[str, float]
    lines: dict[str, dict[str, list[int]]]

    @classmethod
    def of(cls, copy: Copy, files: Sequence[str]) -> Suite:
        """Run every file of tests once. All must pass; they write the bytecode that all runs read."""
        folder = copy.root / "coverage"
        settings, times = folder / "settings", folder / "times.json"
        suite = cls({}, {})
        for number, file in enumerate(files, 1):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            settings.write_text(
                f"[run]\nparallel = true\ndata_file = {folder / 'data'}\nsource = {copy.root / PACKAGE}\n"
                "patch = fork, _exit\nsigterm = true\n",
                encoding="utf-8",
            )
            outcome = copy.run([file], COVERAGE_PROCESS_START=str(settings), TEST_TIMES=str(times))
            if outcome != "survived":
                sys.exit(f"{file} fails without any mutant:\n{(copy.root / 'pytest.log').read_text()[-4000:]}")
            suite.seconds.update(json.loads(times.read_text(encoding="utf-8")))
            ran = defaultdict[str, set[int]](set)
            for part in folder.glob("data*"):
                data = coverage.CoverageData(str(part))
                data.read()
                for path in data.measured_files():
                    ran[Path(path).relative_to(copy.root / PACKAGE).as_posix()].update(data.lines(path) or ())
            suite.lines[file] = {path: sorted(numbers) for path, numbers in ran.items()}
            print(f"[{number}/{len(files)}] without a mutant: {file}", flush=True)
        return suite

    def tests_of(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Return the quickest case of each test of the files that run the mutant's line, and all other cases."""
        changed = statement_at(mutant.spec.module_path, mutant.spec.start_pos[0])
        files = [file for file, ran in self.lines.items() if not changed.isdisjoint(ran.get(mutant.file, ()))]
        quick = dict[str, str]()
        cases = sorted((seconds, name) for name, seconds in self.seconds.items() if name.split("::")[0] in files)
        for seconds, name in cases:
            if seconds < SLOW_S:
                quick.setdefault(name.split("[")[0], name)
        first = set(quick.values())
        ordered = [name for file in files for name in self.seconds if name.split("::")[0] == file]
        return [name for name in ordered if name in first], [name for name in ordered if name not in first]


def statement_at(path: Path, line: int) -> set[int]:
    """Return the lines of the innermost statement at a line, without those of its body."""
    found = {line}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):  # from the outside in
        if isinstance(node, ast.stmt | ast.excepthandler):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno or node.lineno
            lines = set(range(node.lineno, max(last, node.lineno) + 1))
            found = lines if line in lines else found
    return found


def try_one(mutant: Mutant, copy: Copy, suite: Suite) -> str:
    """Return "caught", "survived" or "timed out"."""
    changed, original = copy.root / mutant.spec.module_path, mutant.spec.module_path
    changed.write_text(mutant.source, encoding="utf-8")
    try:
        for tests in suite.tests_of(mutant):
            outcome = copy.run(tests, PATIENCE_S + PATIENCE * sum(suite.seconds[name] for name in tests))
            if outcome != "survived":
                return outcome
    finally:
        shutil.copy2(original, changed)  # with its time, so that its bytecode stays valid
    return "survived"


def test_files(rooms: Sequence[str], *, own: bool) -> list[str]:
    """Return the files of tests that may notice changes of these rooms; all of them are measured."""
    roots = dict.fromkeys([*(test for room in rooms for test in ROOMS[room]), *(() if own else TESTS)])
    paths = [path for root in map(Path, roots) for path in ([root] if root.is_file() else root.rglob("test_*.py"))]
    return sorted({path.as_posix() for path in paths})


def try_all(mutants: Sequence[Mutant], python: Path, arguments: argparse.Namespace) -> list[tuple[Mutant, str]]:
    """Return the outcome of every mutant, with several copies at work at once."""
    first = Copy(make_copy(0), python)
    if arguments.resume and SUITE.exists():
        suite = Suite(**json.loads(SUITE.read_text(encoding="utf-8")))
    else:
        suite = Suite.of(first, test_files(arguments.rooms, own=arguments.own))
        SUITE.write_text(json.dumps(dataclasses.asdict(suite)), encoding="utf-8")
    print(f"the tests take {sum(suite.seconds.values()):.0f} s without a mutant", flush=True)
    copies = [first]
    for number in range(1, arguments.workers):  # with the bytecode
        shutil.rmtree(BUILD / str(number), ignore_errors=True)
        copies.append(Copy(Path(shutil.copytree(first.root, first.root.with_name(str(number)))), python))
    known = read_outcomes() if arguments.resume else {}
    outcomes = [(mutant, known[mutant.key]) for mutant in mutants if mutant.key in known]
    left = iter([mutant for mutant in mutants if mutant.key not in known])

    def work(copy: Copy) -> None:
        for mutant in left:  # a list's iterator may be shared by threads
            outcomes.append((mutant, try_one(mutant, copy, suite)))
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
