"""TensorFlow's rule for the sum of all replicas, in NumPy, so that the demo can show what it loses without TensorFlow.

Source: ``aggregate_gradients_using_hierarchical_copy`` in tensorflow/python/distribute/cross_device_utils.py, the same
from TensorFlow 1.14 to 2.21. The tests hold this module against TensorFlow itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from treefold.cli.demo.network import Parameters


def sum_in_two_halves(gradients: Sequence[Parameters]) -> Parameters:
    """Return what ``tf.distribute.HierarchicalCopyAllReduce`` takes for the sum of these gradients, at least two.

    Half of the devices are added up in each of two groups. Half of an odd number is rounded down, so the last device is
    in neither group.
    """
    half = len(gradients) // 2
    return _add([_add(gradients[:half]), _add(gradients[half : 2 * half])])


def _add(gradients: Sequence[Parameters]) -> Parameters:
    """Return the sum, one replica after the other, as ``tf.add_n``."""
    first, *others = gradients
    return {
        layer: {name: sum((other[layer][name] for other in others), start=array) for name, array in arrays.items()}
        for layer, arrays in first.items()
    }
