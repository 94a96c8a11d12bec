"""``tools/tensorflow_tests.py`` finds what passes with TensorFlow's classes only; and what TensorFlow does not do."""

import inspect
import os
import pathlib

import pytest
import tensorflow as tf

ROOT = pathlib.Path(__file__).parents[2]

SUITE = """
from absl.testing import absltest
from tensorflow.python.distribute import cross_device_ops


class Classes(absltest.TestCase):
    def test_are_theirs(self):
        self.assertStartsWith(cross_device_ops.NcclAllReduce.__module__, "tensorflow.")

    def test_take_ring(self):
        cross_device_ops.AllReduceCrossDeviceOps("ring")

    def test_reduce(self):
        total = cross_device_ops.HierarchicalCopyAllReduce().reduce("SUM", 2.0, "cpu:0")
        self.assertEqual(float(total), 2.0)

    def test_fail(self):
        self.fail()


if __name__ == "__main__":
    absltest.main()
"""

SECOND = """
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 3
)
for count in (2, 3):
    strategy = tf.distribute.MirroredStrategy([f"cpu:{index}" for index in range(count)])
    step = lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0))
    print([float(part) for part in strategy.run(step).values], flush=True)
"""


@pytest.fixture
def run(programs):
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
    return lambda *command: programs.run(command, env=os.environ | quiet, cwd=ROOT)


class TestTool:
    @pytest.mark.long
    def test_lists_what_passes_with_tensorflows_classes_only(self, run, tmp_path):
        """Failing with both is no loss; "ring" is replaced; the exit code tells."""
        folder = tmp_path / "tensorflow" / "python" / "distribute"
        folder.mkdir(parents=True)
        (folder / "values_test.py").write_text(SUITE, encoding="utf-8")
        done = run("tools/tensorflow_tests.py", str(tmp_path), "--keep", "values_test")
        lines = done.stdout.splitlines()
        assert lines[0].startswith("values_test                  tensorflow 3 ok, 1 failed, 0 skipped, 0 unfinished, ")
        assert lines[1].startswith(
            "values_test                  treefold   2 ok, 2 failed, 0 skipped, 0 unfinished, 1 calls"
        )
        assert lines[2:] == [
            "2 tests pass with treefold's classes; 1 pass with TensorFlow's only",
            "  values_test: Classes.test_are_theirs: FAILED",
        ]
        assert done.returncode == 1

    def test_names_the_sources_that_it_misses(self, run, tmp_path):
        done = run("tools/tensorflow_tests.py", str(tmp_path))
        assert done.stderr.startswith("tensorflow/python/distribute/v1/cross_device_ops_test.py is in none of ")
        assert done.returncode == 1


class TestTensorflow:
    def test_lets_mirrored_strategy_only_take_cross_device_ops(self):
        """As docs/migrating.md says."""
        spaces = (tf.distribute, tf.distribute.experimental)
        strategies = {
            name: found
            for space in spaces
            for name, found in vars(space).items()
            if inspect.isclass(found) and issubclass(found, tf.distribute.Strategy)
        }
        takers = {n for n, found in strategies.items() if "cross_device_ops" in inspect.signature(found).parameters}
        assert takers == {"MirroredStrategy"}
        assert set(strategies) > {"MultiWorkerMirroredStrategy", "CentralStorageStrategy", "OneDeviceStrategy"}

    def test_aborts_its_collectives_for_a_second_number_of_devices(self, run, tmp_path):
        """The strategies of all other tests here are of many sizes, and reduce in one process."""
        script = tmp_path / "second.py"
        script.write_text(SECOND)
        done = run(script)
        assert done.stdout == "[2.0, 2.0]\n"
        assert "Collective ops is aborted by: Device" in done.stderr
        assert done.returncode != 0
