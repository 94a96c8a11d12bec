"""The registry of peers, one line each."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """A peer, run by the module ``with_<name>``: what must be installed, and whether every replica is a process."""

    name: str
    needs: tuple[str, ...]
    packages: tuple[str, ...]
    is_process_per_replica: bool = False


PEERS = {
    peer.name: peer
    for peer in (
        PeerInfo("numpy", ("numpy",), ("numpy",)),
        PeerInfo("torch", ("torch",), ("torch",)),
        PeerInfo("tensorflow", ("tensorflow",), ("tensorflow-cpu", "tensorflow")),
        PeerInfo("jax", ("jax",), ("jax", "jaxlib")),
        PeerInfo("gloo", ("torch",), ("torch",), is_process_per_replica=True),
        PeerInfo("mpi", ("mpi4py",), ("mpi4py", "mpich", "openmpi"), is_process_per_replica=True),
    )
}


def find_missing(peer: PeerInfo) -> str | None:
    """Return the first thing that ``peer`` needs and that is not here; None if it can run."""
    for module in peer.needs:
        if importlib.util.find_spec(module) is None:
            return module
    if peer.name == "mpi" and find_mpiexec() is None:
        return "mpiexec"
    return None


def find_mpiexec() -> str | None:
    """Return the program that starts MPI's processes: the one beside this Python first."""
    beside = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    return beside or shutil.which("mpiexec")
