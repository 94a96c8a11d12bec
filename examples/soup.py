"""A soup of checkpoints: add a checkpoint to the average if it lowers the validation loss.

The checkpoints are safetensors files, and `treefold average` averages files in constant memory, whatever their size.
Run it: python examples/soup.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

TRUTH = np.array([1.0, -2.0, 0.5, 3.0])


def train_checkpoints(folder: Path, random: np.random.Generator) -> list[Path]:
    """Fit a linear model to five noisy samples; the last run went wrong."""
    paths = []
    for number, noise in enumerate([0.5, 0.5, 0.5, 0.5, 5.0]):
        x = random.normal(size=(40, 4))
        y = x @ TRUTH + noise * random.normal(size=40)
        weights = np.linalg.lstsq(x, y)[0].astype(np.float32)
        paths.append(folder / f"run{number}.safetensors")
        save_file({"weights": weights}, paths[-1])
    return paths


def average(paths: list[Path], output: Path) -> Path:
    """Average files as a shell would: treefold average A B C -o OUTPUT."""
    command = [sys.executable, "-m", "treefold.cli", "average", *map(str, paths), "-o", str(output)]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own command
    return output


def main() -> None:
    """Cook the soup greedily: the best checkpoint first, then each one that helps."""
    random = np.random.default_rng(seed=3)
    x = random.normal(size=(500, 4))

    def validate(path: Path) -> float:
        return float(np.mean((x @ load_file(path)["weights"] - x @ TRUTH) ** 2))

    with tempfile.TemporaryDirectory() as folder:
        best, *others = sorted(train_checkpoints(Path(folder), random), key=validate)
        chosen, loss = [best], validate(best)
        print(f"best single checkpoint: {best.name}, validation loss {loss:.5f}")
        for path in others:
            with_it = validate(average([*chosen, path], Path(folder) / "soup.safetensors"))
            print(f"with {path.name} it is {with_it:.5f}: {'kept' if with_it < loss else 'left out'}")
            if with_it < loss:
                chosen, loss = [*chosen, path], with_it
        print(f"the soup of {len(chosen)} checkpoints has loss {loss:.5f}")


if __name__ == "__main__":
    main()
