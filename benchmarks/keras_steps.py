"""Measure steps of Keras' ``fit`` on 2 ranks, beside one process with the batch of a rank, on each backend.

Run it: python benchmarks/keras_steps.py [--report FILE]

On TensorFlow, ``MirroredStrategy`` on two logical CPU devices stands beside them, with TensorFlow's own reduction.
Every process has one core of its own, and the two devices have two. "Apart" are two processes at once that reduce
nothing: the machine alone makes them slower than one.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import treefold

BACKENDS = ("tensorflow", "jax", "torch")
#: Per rank; steps of an epoch, and epochs, of which the first is left out.
BATCH, STEPS, EPOCHS = 64, 20, 7
FEATURES, WIDTH, CLASSES = 784, 1024, 10
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
#: Tells a process which core it has.
_CORE = "KERAS_STEPS_CORE"
_NAMES = {
    "one": "one process",
    "apart": "2 processes apart",
    "ranks": "2 ranks, treefold",
    "mirrored": "MirroredStrategy, 2 devices",
}


def make_model():  # noqa: ANN201 - Keras is imported in processes that have chosen a backend
    """Return a model of 1.9 million parameters."""
    import keras  # noqa: PLC0415 - as above

    keras.utils.set_random_seed(1)
    dense = keras.layers.Dense
    return keras.Sequential(
        [keras.Input((FEATURES,)), dense(WIDTH, "relu"), dense(WIDTH, "relu"), dense(CLASSES, "softmax")]
    )


def train(kind: str) -> None:
    """Train in this process, and print the median time of a step in milliseconds."""
    group = treefold.connect() if kind == "ranks" else None
    if kind != "mirrored":  # before Keras' backend counts the cores
        os.sched_setaffinity(0, {int(os.environ.get(_CORE, "0")) if group is None else group.rank})
    import keras  # noqa: PLC0415 - as above
    import numpy as np  # noqa: PLC0415 - as above

    class Clock(keras.callbacks.Callback):
        times: list[float] = []  # noqa: RUF012 - there is one

        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:  # noqa: ARG002
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:  # noqa: ARG002
            self.times.append((time.perf_counter() - self.began) / STEPS)

    batch = BATCH * (2 if kind == "mirrored" else 1)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch * STEPS, FEATURES)).astype("float32")
    y = rng.integers(0, CLASSES, len(x))
    options = {"x": x, "y": y, "batch_size": batch, "epochs": EPOCHS, "verbose": 0, "shuffle": False}
    loss, clock = "sparse_categorical_crossentropy", Clock()
    if group is not None:
        from treefold.keras import callbacks, distribute  # noqa: PLC0415 - not in the other processes

        with group:
            model = make_model()
            model.compile(distribute(keras.optimizers.Adam(), group), loss)
            model.fit(callbacks=callbacks(group, [clock]), **options)
    elif kind == "mirrored":
        import tensorflow as tf  # noqa: PLC0415 - as above

        [cpu] = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
        with strategy.scope():
            model = make_model()
            model.compile("adam", loss)
        model.fit(callbacks=[clock], **options)
    else:
        model = make_model()
        model.compile("adam", loss)
        model.fit(callbacks=[clock], **options)
    print(1e3 * statistics.median(clock.times[1:]))


def measure(backend: str, kind: str) -> float:
    """Return the median time of a step; of two processes, that of the slower one."""
    environment = os.environ | _ONE_THREAD | {"KERAS_BACKEND": backend}
    if kind == "mirrored":  # both devices share the threads of the process
        environment |= {"TF_NUM_INTRAOP_THREADS": "2", "TF_NUM_INTEROP_THREADS": "2"}
    command = [sys.executable, __file__, "--train", kind]
    if kind == "ranks":
        command = [sys.executable, "-m", "treefold.cli", "run", "-n", "2", __file__, "--train", kind]
    count = 2 if kind == "apart" else 1
    started = [
        subprocess.Popen(  # noqa: S603 - this script
            command,
            env=environment | {_CORE: str(core)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        for core in range(count)
    ]
    times = []
    for process in started:
        printed, complaints = process.communicate()
        if process.returncode:
            sys.exit(complaints)
        times += [float(line.split()[-1]) for line in printed.splitlines()]
    return max(times)


def processor() -> str:
    """Return the name of the processor, or an empty string if the system does not tell."""
    found = [line for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines() if line.startswith("model name")]
    return found[0].partition(": ")[2] if found else ""


def report(rounds: int) -> str:
    """Return a page with the medians of rounds in which all kinds take turns."""
    measured: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for backend in BACKENDS:
            for kind in ("one", "apart", "ranks", *(["mirrored"] if backend == "tensorflow" else [])):
                measured.setdefault((backend, kind), []).append(measure(backend, kind))
    versions = ", ".join(f"{name} {version(name)}" for name in ("keras", "tensorflow-cpu", "jax", "torch"))
    lines = [
        f"# Steps of Keras on two processes, {time.strftime('%Y-%m-%d')}",
        "",
        f"{os.cpu_count()} cores of {processor()}, {platform.system()} {platform.machine()},",
        f"Python {platform.python_version()}, {versions}.",
        f"A model of {FEATURES}, {WIDTH}, {WIDTH} and {CLASSES} units (1.9 million parameters), Adam, {BATCH} samples",
        "per rank, one core for each rank and device. Milliseconds per step: medians of",
        f"{EPOCHS - 1} epochs of {STEPS} steps, then of {rounds} rounds in which all took turns.",
        "The ratio is to one process with the batch of one rank.",
        "",
        "| backend | what | ms per step | to one process |",
        "| :-- | :-- | --: | --: |",
    ]
    for (backend, kind), times in measured.items():
        middle = statistics.median(times)
        ratio = middle / statistics.median(measured[backend, "one"])
        lines.append(f"| {backend} | {_NAMES[kind]} | {middle:.1f} | {ratio:.2f} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure everything, or train as one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", choices=sorted(_NAMES), help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    page = report(options.rounds)
    print(page)
    if options.report:
        options.report.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
