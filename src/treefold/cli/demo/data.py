"""The demo's data: scikit-learn's 1,797 handwritten digits, which come with the library.

Source: E. Alpaydin, C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine Learning Repository, 1998.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CLASSES = 10
TEST_EXAMPLES = 360
_GREY_LEVELS = 16
_SPLIT_SEED = 0  # the split never changes with --seed, so that accuracies of different seeds compare


@dataclass(frozen=True, slots=True)
class Examples:
    """Images of shape (n, 64), float32 in [0, 1], and their labels of shape (n,), 0 to 9."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.labels)

    def pick(self, indices: NDArray[np.int64]) -> Examples:
        """Return the examples at ``indices``, copied, in that order."""
        return Examples(self.images[indices], self.labels[indices])


@dataclass(frozen=True, slots=True)
class Digits:
    """The digits, split: each class has the same share of both parts."""

    train: Examples
    test: Examples


def load_split_digits() -> Digits:
    """Return the digits in their fixed, stratified split: 1,437 to train on, 360 to test on.

    Raises:
        ModuleNotFoundError: scikit-learn, of the extra ``treefold[demo]``, is not installed.
    """
    from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra, and slow to import
    from sklearn.model_selection import train_test_split  # noqa: PLC0415 - as above

    images, labels = load_digits(return_X_y=True)
    images = (images / _GREY_LEVELS).astype(np.float32)
    parts = train_test_split(
        images, labels.astype(np.int64), test_size=TEST_EXAMPLES, stratify=labels, random_state=_SPLIT_SEED
    )
    return Digits(train=Examples(parts[0], parts[2]), test=Examples(parts[1], parts[3]))


def draw_batches(examples: int, *, batch_size: int, steps: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the indices of each step's global batch, shape (steps, batch_size).

    Each epoch goes through a new order of the examples and drops what does not fill a batch, so that all batches have
    one size.
    """
    per_epoch = examples // batch_size
    epochs = -(-steps // per_epoch)
    order = [rng.permutation(examples)[: per_epoch * batch_size] for _ in range(epochs)]
    return np.concatenate(order).reshape(-1, batch_size)[:steps]
