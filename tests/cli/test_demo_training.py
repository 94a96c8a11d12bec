import numpy as np
import pytest

from treefold import HierarchicalCopyAllReduce, PerReplica, ReductionToOneDevice
from treefold.cli.demo import LARGEST_DIFFERENCE, check_all
from treefold.cli.training import Course, Examples, add, digest, sum_in_two_halves, train_all


def train(digits, *, ops=None, devices=3, steps=4, seed=0, shuffle=False):
    return train_all(Course(digits[0], devices, steps, seed, shuffle), ops or HierarchicalCopyAllReduce())


class LosesTheLastReplica(HierarchicalCopyAllReduce):
    """Ops that reduce without the last replica's contribution, as TensorFlow's do for odd numbers of devices."""

    def reduce(self, op, value, destinations, *, out):
        for array in value.values[-1].values():
            array[...] = 0
        return super().reduce(op, value, destinations, out=out)


class TestData:
    def test_is_split_alike_in_all_classes(self, digits):
        assert tuple(map(len, digits)) == (1437, 360)
        train, test = (np.bincount(part.labels) for part in digits)
        assert np.abs(test / (train + test) - 360 / 1797).max() < 0.005

    def test_is_float32_between_zero_and_one(self, digits):
        assert digits[0].images.dtype == np.float32
        assert (digits[0].images.min(), digits[0].images.max()) == (0, 1)


class TestCourse:
    def test_goes_through_the_data_once_per_epoch(self):
        numbered = Examples(np.arange(300.0)[:, None], np.zeros(300, np.int64))
        batches = [batch.images.ravel() for batch, _ in Course(numbered, 2, steps=5, seed=0).batches()]
        assert [len(batch) for batch in batches] == [128] * 5
        assert len({*batches[0], *batches[1]}) == 256
        assert not np.array_equal(batches[0], batches[2])

    @pytest.mark.parametrize("devices", range(2, 11))
    def test_gives_every_digit_to_one_device_and_every_device_a_digit(self, digits, devices):
        course = Course(digits[0], devices, steps=1, seed=0)
        assert [digit for held in course.held for digit in held] == list(range(10))
        assert {len(held) for held in course.held} <= {10 // devices, -(-10 // devices)}
        ((batch, parts),) = course.batches()
        assert sorted(label for part in parts for label in part.labels) == sorted(batch.labels)
        assert all({*part.labels} <= {*held} for part, held in zip(parts, course.held, strict=True))

    def test_deals_as_many_to_each_at_random(self, digits):
        ((batch, parts),) = Course(digits[0], 3, steps=1, seed=0, shuffle=True).batches()
        assert [len(part) for part in parts] == [43, 43, 42]
        assert np.array_equal(np.concatenate([part.labels for part in parts]), batch.labels)


class TestSums:
    @pytest.mark.parametrize(("devices", "found"), [(2, 3), (3, 3), (4, 15), (5, 15), (7, 63), (8, 255)])
    def test_two_halves_lose_the_last_of_an_odd_number(self, devices, found):
        gradients = [{"kernel": np.full(2, 2.0**replica)} for replica in range(devices)]
        assert sum_in_two_halves(gradients)["kernel"].tolist() == [found, found]
        assert add(*gradients)["kernel"].tolist() == [2**devices - 1] * 2

    def test_change_no_gradient(self):
        gradients = [{"kernel": np.full(2, 2.0**replica)} for replica in range(3)]
        sum_in_two_halves(gradients)
        assert [one["kernel"].tolist() for one in gradients] == [[1, 1], [2, 2], [4, 4]]


class TestTraining:
    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("devices", [2, 3, 5, 7, 8, 10])
    def test_with_treefold_ends_where_one_device_ends(self, digits, devices, shuffle):
        result = train(digits, devices=devices, shuffle=shuffle)
        assert result.treefold.distance(result.alone) < 1e-6
        assert np.allclose(result.treefold.losses, result.alone.losses, rtol=1e-5)

    @pytest.mark.parametrize("devices", [3, 5, 7, 9])
    def test_with_tensorflows_rule_never_learns_what_the_last_device_holds(self, digits, devices):
        """Of an odd number of devices the last is lost: none of its digits is recognised, and the loss stays high."""
        result = train(digits, devices=devices, steps=60)
        lost = digits[1].of(Course(digits[0], devices, 60, 0).held[-1])
        assert result.tensorflow.accuracy(lost) == 0
        assert result.alone.accuracy(lost) > 0.5
        assert result.tensorflow.losses[-1] > 2 * result.alone.losses[-1]

    def test_with_tensorflows_rule_hardly_shows_when_examples_are_dealt_at_random(self, digits):
        """The weights are wrong, but the accuracy does not show it."""
        result = train(digits, steps=110, shuffle=True)
        assert result.tensorflow.distance(result.alone) > 1e-2
        assert abs(result.tensorflow.accuracy(digits[1]) - result.alone.accuracy(digits[1])) < 0.02

    def test_gives_each_replica_weights_of_its_own(self, digits):
        first, second, third = train(digits).treefold.parameters
        assert digest(first) == digest(second) == digest(third)
        assert not np.shares_memory(first["layer_1/kernel"], second["layer_1/kernel"])

    def test_gives_the_same_bits_with_every_ops(self, digits):
        choices = [HierarchicalCopyAllReduce(), HierarchicalCopyAllReduce(num_packs=5), ReductionToOneDevice()]
        results = [train(digits, ops=ops) for ops in choices]
        assert len({digest(result.treefold.parameters[0]) for result in results}) == 1

    def test_repeats_with_its_seed(self, digits):
        bits = [digest(train(digits, seed=seed).treefold.parameters[0]) for seed in (0, 0, 1)]
        assert bits[0] == bits[1] != bits[2]

    def test_reports_each_step(self, digits):
        heard = []
        train_all(Course(digits[0], 3, 3, 0), HierarchicalCopyAllReduce(), lambda: heard.append(1))
        assert len(heard) == 3


class TestChecks:
    @staticmethod
    def checks(digits, result, *, shuffle=False):
        """Return the checks of a result: plan, same bits, any order, treefold's weights, TensorFlow's rule."""
        ops, parameters = HierarchicalCopyAllReduce(), result.treefold.parameters
        course = Course(digits[0], len(parameters), 1, 0, shuffle)
        return list(check_all(course, result, ops.plan(PerReplica(parameters), "cpu:0", walked=True)))

    def verdicts(self, digits, result, **options):
        return [check.holds for check in self.checks(digits, result, **options)]

    def test_say_what_tensorflows_rule_does(self, digits):
        odd, even = (self.checks(digits, train(digits, devices=devices, steps=1))[-1].claim for devices in (3, 4))
        assert odd == "With TensorFlow's rule they do not: it never reads device 2, and raises no error"
        assert even == "TensorFlow's rule trains them, too, as 4 is an even number; of 3, 5 or 7 devices it loses one"

    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("devices", [3, 8, 10])
    def test_see_a_lost_replica(self, digits, devices, shuffle):
        result = train(digits, ops=LosesTheLastReplica(), devices=devices, steps=1, shuffle=shuffle)
        assert self.verdicts(digits, result, shuffle=shuffle)[:4] == [True, True, True, False]
        assert result.treefold.distance(result.alone) > 100 * LARGEST_DIFFERENCE

    def test_see_one_different_bit(self, digits):
        result = train(digits, steps=2)
        bias = result.treefold.parameters[1]["layer_2/bias"]
        bias[0] = np.nextafter(bias[0], np.float32(1))
        assert self.verdicts(digits, result) == [True, False, True, True, True]
