"""The libraries that ``make bench`` compares with, one line each."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Library:
    """A library: what must be installed, and whether every replica is a process.

    Its module is ``treefold.bench.baselines``, or else ``with_<name>``.
    """

    name: str
    needs: tuple[str, ...]
    packages: tuple[str, ...]
    is_process_per_replica: bool = False


LIBRARIES = {
    library.name: library
    for library in (
        Library("numpy", ("numpy",), ("numpy",)),
        Library("torch", ("torch",), ("torch",)),
        Library("tensorflow", ("tensorflow",), ("tensorflow-cpu", "tensorflow")),
        Library("jax", ("jax",), ("jax", "jaxlib")),
        Library("gloo", ("torch",), ("torch",), is_process_per_replica=True),
        Library("mpi", ("mpi4py",), ("mpi4py", "mpich", "openmpi"), is_process_per_replica=True),
    )
}


def find_missing(library: Library) -> str | None:
    """Return the first need of ``library`` that is not installed, or None if it can run."""
    for module in library.needs:
        if importlib.util.find_spec(module) is None:
            return module
    if library.name == "mpi" and find_mpiexec() is None:
        return "mpiexec"
    return None


def find_mpiexec() -> str | None:
    """Return the program that starts MPI's processes: the one beside this Python first."""
    beside = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    return beside or shutil.which("mpiexec")
