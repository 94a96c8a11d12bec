"""A server that is killed in the middle of a round, and goes on from the file that it saved.

Run it: python examples/server_restart.py
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import treefold

CLIENTS = 8


def receive(client: int) -> tuple[dict[str, np.ndarray], int]:
    """Return a client's update and its number of samples, as if from the network."""
    random = np.random.default_rng(client)
    return {"w": random.normal(size=1000).astype(np.float32)}, int(random.integers(1, 5000))


def save(path: Path, mean: treefold.Mean, seen: set[int]) -> None:
    """Replace the file at once, so that a kill leaves the old one or the new one whole."""
    new = path.with_name("new.npz")
    np.savez(new, seen=sorted(seen), **mean.state_dict())
    new.replace(path)


def serve(path: Path, killed_after: int) -> None:
    """Add each client once. The file has what an earlier server added."""
    mean, seen = treefold.Mean(), set()
    if path.exists():
        with np.load(path) as state:
            mean.load_state_dict(state)
            seen = set(state["seen"].tolist())
        print(f"the server goes on after {mean.count} updates", flush=True)
    for client in sorted(set(range(CLIENTS)) - seen):
        update, number = receive(client)
        mean.add(update, weight=number)
        seen.add(client)
        save(path, mean, seen)
        if len(seen) == killed_after:
            print("the server is killed", flush=True)
            os._exit(1)
    updates, samples = zip(*map(receive, range(CLIENTS)), strict=True)
    at_once = treefold.average(updates, weights=samples)
    print("the bits are those of all updates at once:", np.array_equal(mean.result()["w"], at_once["w"]))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(Path(sys.argv[1]), killed_after=int(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            server = [sys.executable, __file__, str(Path(folder) / "state.npz")]
            subprocess.run([*server, "5"], check=False)  # noqa: S603 - this program
            subprocess.run([*server, "0"], check=True)  # noqa: S603 - this program
