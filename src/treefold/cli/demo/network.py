"""A multi-layer perceptron in NumPy: pure functions over a dict of parameters, gradients written by hand.

Dense layers, tanh between them, softmax cross-entropy at the end. tanh, not ReLU: it is smooth, so that two runs whose
gradients differ in their last bit stay close, which the demo checks; a ReLU unit near zero makes the two part in jumps.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[np.floating[Any]]
#: One array per layer and name: ``parameters["layer_1"]["kernel"]``, shapes (inputs, outputs) and (outputs,).
Parameters = dict[str, dict[str, Array]]


@dataclass(frozen=True, slots=True)
class Momentum:
    """Stochastic gradient descent with momentum: v ← momentum·v + g, then p ← p − learning_rate·v."""

    learning_rate: float
    momentum: float

    def update(self, parameters: Parameters, velocity: Parameters, gradients: Parameters) -> None:
        """Step ``parameters`` and ``velocity``, both in place."""
        for layer, arrays in gradients.items():
            for name, gradient in arrays.items():
                speed = velocity[layer][name]
                speed *= self.momentum
                speed += gradient
                parameters[layer][name] -= self.learning_rate * speed


def draw_parameters(sizes: Sequence[int], rng: np.random.Generator, *, dtype: DTypeLike = np.float32) -> Parameters:
    """Return first parameters for layers of ``sizes``, inputs first (Glorot and Bengio 2010; biases are zero)."""
    parameters: Parameters = {}
    for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes), start=1):
        limit = np.sqrt(6 / (inputs + outputs))
        parameters[f"layer_{number}"] = {
            "kernel": rng.uniform(-limit, limit, (inputs, outputs)).astype(dtype),
            "bias": np.zeros(outputs, dtype),
        }
    return parameters


def copy_parameters(parameters: Parameters) -> Parameters:
    """Return a copy that shares no memory."""
    return {layer: {name: array.copy() for name, array in arrays.items()} for layer, arrays in parameters.items()}


def zeros_like(parameters: Parameters) -> Parameters:
    """Return zeros in the structure, shapes and dtypes of ``parameters``."""
    return {
        layer: {name: np.zeros_like(array) for name, array in arrays.items()} for layer, arrays in parameters.items()
    }


def count_parameters(parameters: Parameters) -> int:
    """Return the number of elements of all arrays."""
    return sum(array.size for arrays in parameters.values() for array in arrays.values())


def predict(parameters: Parameters, images: Array) -> Array:
    """Return the logits, shape (n, classes)."""
    return _run_layers(parameters, images)[-1]


def measure_accuracy(parameters: Parameters, images: Array, labels: NDArray[np.int64]) -> float:
    """Return the share of images whose largest logit is that of their label."""
    return float(np.mean(predict(parameters, images).argmax(axis=1) == labels))


def differentiate(
    parameters: Parameters, images: Array, labels: NDArray[np.int64], *, batch_size: int
) -> tuple[float, Parameters]:
    """Return cross-entropy and its gradients, summed over these examples and divided by ``batch_size``.

    ``batch_size`` is that of the global batch, of which these examples may be a part. The parts of a batch then simply
    add up to the batch's mean, whatever their sizes (as TensorFlow's ``compute_average_loss`` has it).
    """
    activations = _run_layers(parameters, images)
    logits = activations[-1]
    logits = logits - logits.max(axis=1, keepdims=True)
    log_total = np.log(np.exp(logits).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    loss = float((log_total[:, 0] - logits[rows, labels]).sum()) / batch_size
    error = np.exp(logits - log_total)
    error[rows, labels] -= 1
    error /= batch_size
    gradients: Parameters = {}
    for layer, inputs in reversed(list(zip(parameters, activations[:-1], strict=True))):
        gradients[layer] = {"kernel": inputs.T @ error, "bias": error.sum(axis=0)}
        error = (error @ parameters[layer]["kernel"].T) * (1 - inputs * inputs)
    return loss, {layer: gradients[layer] for layer in parameters}


def find_largest_difference(one: Parameters, other: Parameters) -> float:
    """Return the largest absolute difference between two sets of parameters, over all elements."""
    return max(
        float(np.max(np.abs(array.astype(np.float64) - other[layer][name])))
        for layer, arrays in one.items()
        for name, array in arrays.items()
    )


def digest(parameters: Parameters) -> str:
    """Return the SHA-256 of all bits; equal if and only if, for all that one can tell, all bits are."""
    state = hashlib.sha256()
    for layer, arrays in sorted(parameters.items()):
        for name, array in sorted(arrays.items()):
            state.update(f"{layer}/{name} {array.dtype} {array.shape}\n".encode())
            state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def _run_layers(parameters: Parameters, images: Array) -> list[Array]:
    """Return what goes into each layer, then the logits."""
    values: list[Array] = [images]
    last = len(parameters) - 1
    for index, arrays in enumerate(parameters.values()):
        outputs = values[-1] @ arrays["kernel"] + arrays["bias"]
        values.append(outputs if index == last else np.tanh(outputs))
    return values
