"""How fast treefold's ops for ``tf.distribute`` are beside TensorFlow's own: prints the table of docs/migrating.md.

``python benchmarks/beside_tensorflow.py [ROUNDS]``. A ``MirroredStrategy`` of four CPU devices is given each ops object
in turn. They reduce the same gradients, eagerly and inside ``tf.function``, and make the same training step. All take
turns within a round, in bursts of some 10 ms; a ratio is taken within a round, and its median and quartiles are shown.
Every result is compared with the sum of 2**r before it is timed. The number of devices is even, as TensorFlow's
hierarchical copy loses the last replica of an odd one.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

# Read when TensorFlow is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

import treefold.tensorflow
from treefold.bench.machine import describe_machine, describe_versions
from treefold.report.tables import markdown_table

_DEVICES, _BURST_S = 4, 0.01
_KIB = 256  # elements of float32
_CPU = tf.config.list_physical_devices("CPU")[0]
_GRADIENTS = {"20 × 1 KiB": (20, _KIB), "20 × 64 KiB": (20, 64 * _KIB), "8 × 4 MiB": (8, 4096 * _KIB)}
_LAYERS = {"2 layers of 16 KiB": 64, "2 layers of 16 MiB": 2048}

Call = Callable[[], Any]


def strategies() -> dict[str, Any]:
    """Return a strategy for each ops object, treefold's first."""
    ops = {
        "treefold": treefold.tensorflow.HierarchicalCopyAllReduce(),
        "ReductionToOneDevice": tf.distribute.ReductionToOneDevice(),
        "HierarchicalCopyAllReduce": tf.distribute.HierarchicalCopyAllReduce(),
        "the default (ring)": None,
    }
    names = [f"cpu:{index}" for index in range(_DEVICES)]
    return {name: tf.distribute.MirroredStrategy(names, cross_device_ops=made) for name, made in ops.items()}


def owned(shape: tuple[int, ...]) -> Any:
    """Return a tensor of 2**r in replica r."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return tf.fill(shape, 2.0 ** tf.cast(replica, tf.float32))


def reduction(strategy: Any, count: int, length: int, *, is_traced: bool) -> Call:
    """Return a call that sums gradients as ``MirroredStrategy`` has its ops do it, checked once."""
    values = [strategy.run(lambda: owned((length,))) for _ in range(count)]

    def reduce(values: Any) -> list[Any]:
        pairs = [(value, value) for value in values]
        return [total.values for total in strategy.extended.batch_reduce_to("SUM", pairs)]

    wrapped = tf.function(reduce) if is_traced else reduce
    for total in tf.nest.flatten(wrapped(values)):
        if not bool(tf.reduce_all(total == 2.0**_DEVICES - 1)):
            raise AssertionError(total)
    return lambda: wrapped(values)


def training_step(strategy: Any, width: int) -> Call:
    """Return a traced step of two layers, gradients averaged over the replicas; its first is checked."""
    with strategy.scope():
        layers = [tf.Variable(tf.zeros([width, width])) for _ in range(2)]
    inputs = strategy.run(lambda: owned((8, width)))

    def step(inputs: Any) -> None:
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(inputs @ layer) for layer in layers)
        gradients = tape.gradient(loss, layers)
        means = tf.distribute.get_replica_context().all_reduce("MEAN", gradients)
        for layer, mean in zip(layers, means, strict=True):
            layer.assign_sub(mean)

    run = tf.function(lambda inputs: strategy.run(step, args=(inputs,)))
    run(inputs)
    expected = -8 * (2.0**_DEVICES - 1) / _DEVICES
    for component in (component for layer in layers for component in layer.values):
        if not bool(tf.reduce_all(component == expected)):
            raise AssertionError(component)
    return lambda: run(inputs)


def workloads() -> Mapping[tuple[str, str], Callable[[Any], Call]]:
    """Return what makes each row's call for a strategy."""
    made: dict[tuple[str, str], Callable[[Any], Call]] = {}
    for way, is_traced in (("eager", False), ("in tf.function", True)):
        for name, sizes in _GRADIENTS.items():
            made[f"reduction, {way}", name] = lambda strategy, sizes=sizes, is_traced=is_traced: reduction(
                strategy, *sizes, is_traced=is_traced
            )
    for name, width in _LAYERS.items():
        made["training step in tf.function", name] = lambda strategy, width=width: training_step(strategy, width)
    return made


def burst(call: Call, count: int) -> float:
    """Return the time of one of ``count`` calls, in milliseconds."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count * 1e3


def measure(calls: list[Call], rounds: int) -> list[list[float]]:
    """Return the times of each call, one per round; the order turns around from round to round."""
    counts = []
    for call in calls:
        burst(call, 3)
        counts.append(max(1, int(_BURST_S * 1e3 / burst(call, 3))))
    times: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    for _ in range(rounds):
        for index in order:
            times[index].append(burst(calls[index], counts[index]))
        order.reverse()
    return times


def main(rounds: int) -> None:
    """Measure every row and print the table."""
    tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * _DEVICES)
    made = strategies()
    machine, versions = describe_machine(), describe_versions(("tensorflow-cpu", "tensorflow"))
    print(f"{machine['processor']}, {machine['cores']} cores; {', '.join(f'{k} {v}' for k, v in versions.items())}; ")
    print(f"{_DEVICES} CPU devices, float32, {rounds} rounds\n")
    rows = []
    for (what, size), make in workloads().items():
        ours, *theirs = measure([make(strategy) for strategy in made.values()], rounds)
        row = [what, size, f"{statistics.median(ours):.2f}"]
        for times in theirs:
            low, middle, high = statistics.quantiles([one / two for one, two in zip(times, ours, strict=True)], n=4)
            row.append(f"{middle:.2f} [{low:.2f}–{high:.2f}]")
        rows.append(row)
        print(f"measured: {what}, {size}", file=sys.stderr)
    print(markdown_table(["what", "gradients", "treefold, ms", *list(made)[1:]], rows))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
