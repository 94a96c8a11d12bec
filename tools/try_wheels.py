"""Build a wheel per Python and compiler, and try each in an empty environment.

``python tools/try_wheels.py --compilers g++,clang++,none python3.11 python3.12``

A compiler is a C++ compiler on PATH, or ``none``, which hides them all. The latter's wheel must come without the native
core, and reduce in NumPy. Every other wheel must have it, and must pass the tests of the native core. Wheels for
publishing are built by cibuildwheel, which makes them run on older systems, too; this program needs no container.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPILED = (".so", ".pyd")
TEST_PACKAGES = ("pytest", "pytest-xdist", "hypothesis", "ml_dtypes")


def run(*command: str | Path, environment: dict[str, str] | None = None) -> None:
    """Run a command in the checkout; if it fails, end with its output."""
    arguments = [str(word) for word in command]
    done = subprocess.run(  # noqa: S603 - our own words
        arguments, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(arguments)}: exit status {done.returncode}")


def make_environment(python: str, folder: Path) -> Path:
    """Return the Python of a new, empty virtual environment."""
    run(python, "-m", "venv", folder)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def environment_with(compiler: str, empty: Path) -> dict[str, str]:
    """Return the environment variables of a build by that compiler, or without one."""
    environment = {name: value for name, value in os.environ.items() if name not in {"CC", "CXX", "CMAKE_ARGS"}}
    if compiler == "none":
        empty.mkdir()
        return environment | {"PATH": str(empty)}
    return environment | {"CXX": compiler}


def build(python: str, compiler: str, folder: Path) -> Path:
    """Return a wheel built by that Python and compiler."""
    builder = make_environment(python, folder / "builder")
    run(
        *(builder, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--wheel-dir", folder, "."),
        environment=environment_with(compiler, folder / "empty"),
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def has_native(wheel: Path) -> bool:
    """Return whether a wheel contains compiled code."""
    with zipfile.ZipFile(wheel) as archive:
        return any(name.endswith(COMPILED) for name in archive.namelist())


def try_wheel(python: str, wheel: Path, folder: Path, *, is_native: bool) -> None:
    """Install a wheel alone; run its command and a reduction, then the tests of the native core if it has one."""
    user = make_environment(python, folder / "user")
    install = (user, "-m", "pip", "--disable-pip-version-check", "install", "--constraint", "constraints.txt")
    run(*install, wheel)
    run(user.parent / "treefold", "--help")
    run(user, "-I", "tools/smoke.py", "native" if is_native else "numpy")
    if is_native:
        run(*install, *TEST_PACKAGES)
        run(user, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/native")


def main() -> None:
    """Try every Python with every compiler; end with the first failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compilers", default="g++,none", help="C++ compilers, or none (default: %(default)s)")
    parser.add_argument("pythons", nargs="*", default=[sys.executable])
    arguments = parser.parse_args()
    for python in arguments.pythons:
        for compiler in arguments.compilers.split(","):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                wheel = build(python, compiler, folder)
                is_native = compiler != "none"
                if has_native(wheel) != is_native:
                    expected = "with" if is_native else "without"
                    sys.exit(f"Compiler {compiler} made {wheel.name}, which should have come {expected} compiled code.")
                try_wheel(python, wheel, folder, is_native=is_native)
                print(f"works: {wheel.name}, made by {python} with compiler {compiler}", flush=True)


if __name__ == "__main__":
    main()
