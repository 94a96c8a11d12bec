"""The training of ``treefold demo``: a small network on real digits, on one device, and data-parallel on several.

The network is a multi-layer perceptron in NumPy: dense layers, tanh between them, softmax cross-entropy at the end, and
gradients written by hand. Unlike ReLU, tanh is smooth: two trainings with gradients that differ in the last bit stay
close, which the demo checks. A ReLU unit near zero would separate them in jumps.

The digits are the 1,797 of scikit-learn. Source: E. Alpaydin, C. Kaynak, *Optical Recognition of Handwritten Digits*,
UCI Machine Learning Repository, 1998.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treefold import CrossDeviceOps, PerReplica, ReduceOp
from treefold.group import Group

CLASSES = 10
BATCH_SIZE = 128
SIZES = (64, 128, 64, CLASSES)
LEARNING_RATE, MOMENTUM = 0.1, 0.9
#: Parts of one batch. Their gradients can be summed in any order, and shared among any number of ranks.
PARTS = 16

Array = NDArray[np.floating[Any]]
#: Weights by layer and name: ``parameters["layer_1/kernel"]``, shapes (inputs, outputs) and (outputs,).
Parameters = dict[str, Array]
Reduction = Callable[[list[Parameters]], Sequence[Parameters]]


@dataclass(frozen=True, slots=True)
class Examples:
    """Images of shape (n, 64), float32 in [0, 1], and their labels of shape (n,), 0 to 9."""

    images: Array
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.labels)

    def pick(self, indices: NDArray[np.int64]) -> Examples:
        """Return the examples at ``indices``, copied, in that order."""
        return Examples(self.images[indices], self.labels[indices])

    def of(self, digits: Sequence[int]) -> Examples:
        """Return the examples of these digits."""
        return self.pick(np.flatnonzero(np.isin(self.labels, digits)))

    def cut(self, parts: int) -> list[Examples]:
        """Return the examples in ``parts`` parts of equal size, or sizes that differ by one."""
        return [self.pick(part) for part in np.array_split(np.arange(len(self)), parts)]


def load_split_digits() -> tuple[Examples, Examples]:
    """Return the digits in their fixed, stratified split: 1,437 to train on, 360 to test on.

    Raises:
        ModuleNotFoundError: scikit-learn, of the extra ``treefold[demo]``, is not installed.
    """
    from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra, and slow to import
    from sklearn.model_selection import train_test_split  # noqa: PLC0415 - as above

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)  # of as many grey levels
    # The split never changes with --seed, so that accuracies of different seeds compare.
    parts = train_test_split(images, labels.astype(np.int64), test_size=360, stratify=labels, random_state=0)
    return Examples(parts[0], parts[2]), Examples(parts[1], parts[3])


def draw_parameters(rng: np.random.Generator, sizes: Sequence[int] = SIZES) -> Parameters:
    """Return initial parameters for layers of ``sizes``, inputs first (Glorot and Bengio 2010; biases are zero)."""
    parameters: Parameters = {}
    for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes), start=1):
        limit = np.sqrt(6 / (inputs + outputs))
        parameters[f"layer_{number}/kernel"] = rng.uniform(-limit, limit, (inputs, outputs)).astype(np.float32)
        parameters[f"layer_{number}/bias"] = np.zeros(outputs, np.float32)
    return parameters


def run_layers(parameters: Parameters, images: Array) -> list[Array]:
    """Return the inputs of each layer, then the logits, shape (n, classes)."""
    values: list[Array] = [images]
    layers = len(parameters) // 2
    for number in range(1, layers + 1):
        outputs = values[-1] @ parameters[f"layer_{number}/kernel"] + parameters[f"layer_{number}/bias"]
        values.append(outputs if number == layers else np.tanh(outputs))
    return values


def differentiate(parameters: Parameters, examples: Examples, batch_size: int) -> tuple[float, Parameters]:
    """Return cross-entropy and its gradients, summed over these examples and divided by ``batch_size``.

    ``batch_size`` is that of the global batch, of which these examples may be a part. The parts of a batch then add up
    to the batch's mean, whatever their sizes, as with TensorFlow's ``compute_average_loss``.
    """
    *inputs, logits = run_layers(parameters, examples.images)
    logits = logits - logits.max(axis=1, keepdims=True)
    log_total = np.log(np.exp(logits).sum(axis=1, keepdims=True))
    rows = np.arange(len(examples))
    loss = float((log_total[:, 0] - logits[rows, examples.labels]).sum()) / batch_size
    error = np.exp(logits - log_total)
    error[rows, examples.labels] -= 1
    error /= batch_size
    gradients: Parameters = {}
    for number, values in reversed([*enumerate(inputs, start=1)]):
        gradients[f"layer_{number}/kernel"] = values.T @ error
        gradients[f"layer_{number}/bias"] = error.sum(axis=0)
        error = (error @ parameters[f"layer_{number}/kernel"].T) * (1 - values * values)
    return loss, gradients


def descend(parameters: Parameters, velocity: Parameters, gradients: Parameters) -> None:
    """Update both by gradient descent with momentum from rest: v ← MOMENTUM·v + g, then p ← p − LEARNING_RATE·v."""
    for name, gradient in gradients.items():
        velocity[name] = MOMENTUM * velocity.get(name, 0.0) + gradient
        parameters[name] -= LEARNING_RATE * velocity[name]


def digest(parameters: Parameters) -> str:
    """Return the SHA-256 of all bits, which is equal if all bits are equal, and in practice only then."""
    state = hashlib.sha256()
    for name, array in sorted(parameters.items()):
        state.update(f"{name} {array.dtype} {array.shape}\n".encode() + array.tobytes())
    return state.hexdigest()


def sum_in_two_halves(gradients: Sequence[Parameters]) -> Parameters:
    """Return the wrong sum of these gradients, at least two, that ``tf.distribute.HierarchicalCopyAllReduce`` computes.

    Half of the devices are added up in each of two groups. Half of an odd number is rounded down, so the last device is
    in neither group. Source: ``aggregate_gradients_using_hierarchical_copy`` in TensorFlow's
    tensorflow/python/distribute/cross_device_utils.py, the same from 1.14 to 2.21. Tests compare this with TensorFlow.
    """
    half = len(gradients) // 2
    groups = gradients[:half], gradients[half : 2 * half]
    return add(*(add(*group) for group in groups))


def add(first: Parameters, *others: Parameters) -> Parameters:
    """Return the sum, one array after the other in float32, as a loop and ``tf.add_n`` compute it."""
    return {name: sum((other[name] for other in others), start=array) for name, array in first.items()}


@dataclass(frozen=True)
class Course:
    """The data of a training: ``steps`` batches of ``train``, drawn by ``seed`` and dealt to 2 to 10 ``devices``.

    Each device holds some of the digits, as if it had files of its own, and gets the examples of these in every batch.
    With ``shuffle`` it gets any examples, as many as the others.
    """

    train: Examples
    devices: int
    steps: int
    seed: int
    shuffle: bool = False

    @property
    def held(self) -> list[list[int]]:
        """The digits that each device holds; none if examples are dealt at random.

        >>> Course(Examples(np.zeros((1, 64)), np.zeros(1, np.int64)), devices=3, steps=1, seed=0).held
        [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
        """
        owners = [digit * self.devices // CLASSES for digit in range(CLASSES)]
        held = [[digit for digit, owner in enumerate(owners) if owner == device] for device in range(self.devices)]
        return [] if self.shuffle else held

    def start(self) -> Parameters:
        """Return the initial parameters of every training of the course."""
        return draw_parameters(np.random.default_rng(self.seed))

    def batches(self) -> Iterator[tuple[Examples, list[Examples]]]:
        """Yield each step's global batch, whole and dealt.

        Each epoch goes through a new order of the examples, without those at its end that do not fill a batch.
        """
        rng = np.random.default_rng(self.seed)
        draw_parameters(rng)  # which come first
        per_epoch = len(self.train) // BATCH_SIZE
        for step in range(self.steps):
            if step % per_epoch == 0:
                order = rng.permutation(len(self.train))
            batch = self.train.pick(order[step % per_epoch * BATCH_SIZE :][:BATCH_SIZE])
            yield batch, [batch.of(digits) for digits in self.held] or batch.cut(self.devices)

    def gradients(self) -> list[Parameters]:
        """Return the gradients of the parts of one batch, at the initial parameters."""
        batch = self.train.pick(np.arange(BATCH_SIZE))
        return [differentiate(self.start(), part, BATCH_SIZE)[1] for part in batch.cut(PARTS)]


class Training:
    """Replicas of the network. Each has weights and momentum of its own, and sees its part of every batch.

    ``losses``: the loss of the global batch after each step.
    """

    def __init__(self, course: Course, replicas: int, reduce: Reduction) -> None:
        """Begin with the course's initial parameters; ``reduce`` gives every replica the sum of all gradients."""
        self.parameters = [course.start() for _ in range(replicas)]
        self.losses: list[float] = []
        self._velocities: list[Parameters] = [{} for _ in range(replicas)]
        self._reduce = reduce

    def step(self, parts: Sequence[Examples]) -> None:
        """Train every replica on its part of a batch."""
        # Parts differ in size. Each gradient is its part's sum over the *global* batch size. Their SUM is therefore the
        # mean over the batch for every number of devices; a MEAN of the parts' means would not be.
        shares = [differentiate(*pair, BATCH_SIZE) for pair in zip(self.parameters, parts, strict=True)]
        reduced = self._reduce([gradients for _, gradients in shares])
        for replica in zip(self.parameters, self._velocities, reduced, strict=True):
            descend(*replica)
        self.losses.append(math.fsum(loss for loss, _ in shares))

    def accuracy(self, test: Examples) -> float:
        """Return the share of images for which the first replica's largest logit is that of the label."""
        return float(np.mean(run_layers(self.parameters[0], test.images)[-1].argmax(axis=1) == test.labels))

    def distance(self, alone: Training) -> float:
        """Return the largest difference between a weight of any replica and that of the training on one device."""
        pairs = [(array, alone.parameters[0][name]) for one in self.parameters for name, array in one.items()]
        return max(float(np.max(np.abs(array.astype(np.float64) - other))) for array, other in pairs)


class Trainings(NamedTuple):
    """The three trainings of the demo: on one device, on several with treefold, and with TensorFlow's rule."""

    alone: Training
    treefold: Training
    tensorflow: Training


def train_all(course: Course, ops: CrossDeviceOps, on_step: Callable[[], object] = lambda: None) -> Trainings:
    """Train all three from the same initial parameters on the same batches, step by step side by side."""

    def by_treefold(gradients: list[Parameters]) -> Sequence[Parameters]:
        value = PerReplica(gradients)
        return ops.reduce(ReduceOp.SUM, value, destinations=value, out=value).values

    alone = Training(course, 1, lambda gradients: gradients)
    treefold = Training(course, course.devices, by_treefold)
    tensorflow = Training(course, course.devices, lambda own: [sum_in_two_halves(own)] * course.devices)
    for batch, parts in course.batches():
        alone.step([batch])
        treefold.step(parts)
        tensorflow.step(parts)
        on_step()
    return Trainings(alone, treefold, tensorflow)


def train_rank(course: Course, group: Group) -> Training:
    """Train this rank's replica on its part of every batch."""
    training = Training(course, 1, lambda own: [group.all_reduce(own[0], out=own[0])])
    for _, parts in course.batches():
        training.step([parts[group.rank]])
    training.losses = list(map(math.fsum, group.all_gather(np.array([training.losses])).T))
    return training
