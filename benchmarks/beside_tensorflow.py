"""Measures treefold's ops for ``tf.distribute`` beside TensorFlow's own, and prints the tables of docs/migrating.md.

Run ``python benchmarks/beside_tensorflow.py [ROUNDS]``. A ``MirroredStrategy`` of CPU devices gets each ops object in
turn. All of them reduce the same gradients, eagerly and inside ``tf.function``, and make the same step. In every round
all take turns, in bursts of some 10 ms. Ratios are formed within a round; the tables have their median and quartiles.
Ratios are those of wall time, and in graphs also of CPU time, summed over the threads of the process.

Every result is compared with the sum of 2**r before it is timed. The number of devices is even, because TensorFlow's
hierarchical copy loses the last replica of an odd one. TensorFlow's collective ops keep one number of devices per
process, so graphs are compared with its ``ReductionToOneDevice`` only. Steps are also made without any reduction: the
ratio to those is the largest that any reduction could reach.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

# Read when TensorFlow is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

import treefold.tensorflow
from treefold.bench.work import Shapes, resnet50
from treefold.cli.tables import markdown_table
from treefold.execution.host import describe_machine, describe_versions

_DEVICES, _MOST_DEVICES, _BURST_S = 4, 8, 0.01
_KIB = 256  # elements of float32
_CPU = tf.config.list_physical_devices("CPU")[0]
_GRADIENTS: Mapping[str, Shapes] = {
    "20 × 1 KiB": ((_KIB,),) * 20,
    "20 × 64 KiB": ((64 * _KIB,),) * 20,
    "8 × 4 MiB": ((4096 * _KIB,),) * 8,
}
_FEW, _MANY, _LARGE = ((8,),) * 4, ((8,),) * 60, ((1024 * _KIB,),) * 8
_TRACED: Sequence[tuple[int, str, Shapes]] = (
    (2, "4 × 32 B", _FEW),
    (4, "4 × 32 B", _FEW),
    (2, "60 × 32 B", _MANY),
    (4, "60 × 32 B", _MANY),
    (4, "8 × 1 MiB", _LARGE),
    (8, "ResNet-50's", resnet50()),
)
_SMALL_STEP = 2.0**-20  # so that variables stay about 1 however often a step is repeated

Call = Callable[[], Any]


class Time(NamedTuple):
    """The time of one call, in milliseconds."""

    wall: float
    cpu: float


class NoReduction(tf.distribute.ReductionToOneDevice):  # type: ignore[misc] # TensorFlow ships no types
    """Returns every replica's own value."""

    def batch_reduce_implementation(self, _op: Any, pairs: Sequence[tuple[Any, Any]], _options: Any) -> list[Any]:
        """Return the values unchanged."""
        return [value for value, _ in pairs]


def strategies(devices: int, *, beside_all: bool) -> dict[str, Any]:
    """Return a strategy for each ops object, treefold's first."""
    ops = {
        "treefold": treefold.tensorflow.HierarchicalCopyAllReduce(),
        "ReductionToOneDevice": tf.distribute.ReductionToOneDevice(),
    }
    if beside_all:
        ops |= {
            "HierarchicalCopyAllReduce": tf.distribute.HierarchicalCopyAllReduce(),
            "the default (ring)": None,
        }
    names = [f"cpu:{index}" for index in range(devices)]
    return {name: tf.distribute.MirroredStrategy(names, cross_device_ops=made) for name, made in ops.items()}


def owned(shape: tuple[int, ...]) -> Any:
    """Return a tensor of 2**r in replica r."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return tf.fill(shape, 2.0 ** tf.cast(replica, tf.float32))


def reduction(strategy: Any, shapes: Shapes, *, is_traced: bool) -> Call:
    """Return a call that sums gradients by a strategy's ops, as ``MirroredStrategy`` does, after one check."""
    values = [strategy.run(owned, args=(shape,)) for shape in shapes]

    def reduce(values: Any) -> list[Any]:
        pairs = [(value, value) for value in values]
        return [total.values for total in strategy.extended.batch_reduce_to("SUM", pairs)]

    wrapped = tf.function(reduce) if is_traced else reduce
    for total in tf.nest.flatten(wrapped(values)):
        if not bool(tf.reduce_all(total == 2.0**strategy.num_replicas_in_sync - 1)):
            raise AssertionError(total)
    return lambda: wrapped(values)


def update(strategy: Any, shapes: Shapes, *, is_reduced: bool = True) -> Call:
    """Return a traced step of little but reductions: the gradients of its variables are their values times 2**r."""
    with strategy.scope():
        variables = [tf.Variable(tf.ones(shape)) for shape in shapes]
    factors = strategy.run(lambda: owned(()) * _SMALL_STEP)

    def step(factor: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(variable * variable) for variable in variables]) * factor / 2
        gradients = tape.gradient(loss, variables)
        means = tf.distribute.get_replica_context().all_reduce("MEAN", gradients)
        for variable, mean in zip(variables, means, strict=True):
            variable.assign_sub(mean)

    run = tf.function(lambda factors: strategy.run(step, args=(factors,)))
    run(factors)
    replicas = strategy.num_replicas_in_sync
    for replica, component in ((r, component) for variable in variables for r, component in enumerate(variable.values)):
        mean = (2.0**replicas - 1) / replicas if is_reduced else 2.0**replica
        if not bool(tf.reduce_all(component == 1 - tf.constant(mean * _SMALL_STEP))):
            raise AssertionError(component)
    return lambda: run(factors)


def burst(call: Call, count: int) -> Time:
    """Return the time of one of ``count`` calls."""
    start, cpu_start = time.perf_counter(), time.process_time()
    for _ in range(count):
        call()
    cpu, wall = time.process_time() - cpu_start, time.perf_counter() - start
    return Time(wall / count * 1e3, cpu / count * 1e3)


def measure(calls: list[Call], rounds: int) -> list[list[Time]]:
    """Return the times of each call, one per round; every other round goes in the opposite order."""
    counts = []
    for call in calls:
        burst(call, 3)
        counts.append(max(1, int(_BURST_S * 1e3 / burst(call, 3).wall)))
    times: list[list[Time]] = [[] for _ in calls]
    order = list(range(len(calls)))
    for _ in range(rounds):
        for index in order:
            times[index].append(burst(calls[index], counts[index]))
        order.reverse()
    return times


def compared(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the median and quartiles of the ratio of their time to ours, round by round."""
    low, middle, high = statistics.quantiles([one / two for one, two in zip(theirs, ours, strict=True)], n=4)
    return f"{middle:.2f} [{low:.2f}–{high:.2f}]"


def eager(rounds: int) -> str:
    """Return the table of wall times of eager reductions beside all of TensorFlow's ops."""
    made = strategies(_DEVICES, beside_all=True)
    rows = []
    for name, shapes in _GRADIENTS.items():
        calls = [reduction(strategy, shapes, is_traced=False) for strategy in made.values()]
        ours, *others = measure(calls, rounds)
        wall = [one.wall for one in ours]
        ratios = [compared(wall, [one.wall for one in theirs]) for theirs in others]
        rows.append([name, f"{statistics.median(wall):.2f}", *ratios])
        print(f"measured: eager reduction, {name}", file=sys.stderr)
    return markdown_table(["eager, gradients", "treefold, ms", *list(made)[1:]], rows)


def in_graphs(rounds: int) -> str:
    """Return the table of CPU and wall times inside ``tf.function`` beside TensorFlow's ``ReductionToOneDevice``."""
    rows = []
    for what, make in (("step", update), ("reduction", lambda *given: reduction(*given, is_traced=True))):
        for devices, name, shapes in _TRACED:
            made = strategies(devices, beside_all=False)
            ours, theirs = measure([make(strategy, shapes) for strategy in made.values()], rounds)
            row = [what, name, str(devices), f"{statistics.median(one.cpu for one in ours):.2f}"]
            row.append(compared([one.cpu for one in ours], [one.cpu for one in theirs]))
            row.append(f"{statistics.median(one.wall for one in ours):.2f}")
            row.append(compared([one.wall for one in ours], [one.wall for one in theirs]))
            rows.append(row)
            print(f"measured: {what} in tf.function, {name}, {devices} devices", file=sys.stderr)
    header = ["in tf.function", "gradients", "devices", "CPU, ms", "CPU, ratio", "wall, ms", "wall, ratio"]
    return markdown_table(header, rows)


def without_reduction(rounds: int) -> str:
    """Return the table of steps with TensorFlow's ``ReductionToOneDevice`` beside steps without any reduction."""
    rows = []
    for devices, name, shapes in _TRACED:
        names = [f"cpu:{index}" for index in range(devices)]
        beside = strategies(devices, beside_all=False)["ReductionToOneDevice"]
        without = tf.distribute.MirroredStrategy(names, cross_device_ops=NoReduction())
        least, theirs = measure([update(without, shapes, is_reduced=False), update(beside, shapes)], rounds)
        row = [name, str(devices), compared([one.cpu for one in least], [one.cpu for one in theirs])]
        rows.append([*row, compared([one.wall for one in least], [one.wall for one in theirs])])
        print(f"measured: step without reduction, {name}, {devices} devices", file=sys.stderr)
    return markdown_table(["steps, at most: gradients", "devices", "CPU, ratio", "wall, ratio"], rows)


def main(rounds: int) -> None:
    """Measure every row and print the tables."""
    tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * _MOST_DEVICES)
    machine, versions = describe_machine(), describe_versions(("tensorflow-cpu", "tensorflow"))
    print(f"{machine['processor']}, {machine['cores']} cores; {', '.join(f'{k} {v}' for k, v in versions.items())}; ")
    print(f"CPU devices, float32, {rounds} rounds\n")
    print(in_graphs(rounds))
    print(without_reduction(rounds))
    print(eager(rounds))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
