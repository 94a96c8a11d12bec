import dataclasses
import itertools

import numpy as np
import pytest

from treefold import HierarchicalCopyAllReduce, ReductionToOneDevice
from treefold.cli.demo.checks import LARGEST_DIFFERENCE, check_result, measure_difference
from treefold.cli.demo.data import draw_batches
from treefold.cli.demo.network import copy_parameters, digest
from treefold.cli.demo.speed import measure_speed
from treefold.cli.demo.tensorflow_rule import sum_in_two_halves
from treefold.cli.demo.train import digits_of, train_all


def train(digits, *, ops=None, devices=3, steps=4, seed=0, **options):
    """Train shortly."""
    return train_all(digits, ops=ops or HierarchicalCopyAllReduce(), devices=devices, steps=steps, seed=seed, **options)


class LosesTheLastReplica(HierarchicalCopyAllReduce):
    """Ops that reduce without the last replica's contribution, as TensorFlow's do for odd numbers of devices."""

    def reduce(self, op, value, destinations, *, out):
        """Reduce as if the last replica had brought zeros."""
        for arrays in value.values[-1].values():
            for array in arrays.values():
                array[...] = 0
        return super().reduce(op, value, destinations, out=out)


class TestData:
    def test_is_split_alike_in_all_classes(self, digits):
        """1,437 to train on and 360 to test on, each class with a fifth of its digits in the test."""
        assert (len(digits.train), len(digits.test)) == (1437, 360)
        train, test = (np.bincount(part.labels) for part in (digits.train, digits.test))
        assert np.abs(test / (train + test) - 360 / 1797).max() < 0.005

    def test_is_float32_between_zero_and_one(self, digits):
        """Pixels are scaled, and small enough to train in float32."""
        assert digits.train.images.dtype == np.float32
        assert (digits.train.images.min(), digits.train.images.max()) == (0, 1)

    def test_batches_go_through_the_data_once_per_epoch(self):
        """Within an epoch no example comes twice; the next epoch has another order."""
        batches = draw_batches(100, batch_size=30, steps=7, rng=np.random.default_rng(0))
        assert batches.shape == (7, 30)
        assert len(set(batches[:3].ravel())) == 90
        assert not np.array_equal(batches[0], batches[3])


class TestDigitsOf:
    @pytest.mark.parametrize("devices", range(2, 11))
    def test_gives_every_digit_to_one_device_and_every_device_a_digit(self, devices):
        """From 2 to 10 devices, in order, each with nearly as many as the others."""
        held = digits_of(devices)
        assert [digit for digits in held for digit in digits] == list(range(10))
        assert {len(digits) for digits in held} <= {10 // devices, -(-10 // devices)}


class TestSumInTwoHalves:
    @pytest.mark.parametrize(("devices", "found"), [(2, 3), (3, 3), (4, 15), (5, 15), (7, 63), (8, 255)])
    def test_loses_the_last_of_an_odd_number(self, devices, found):
        """Replica r brings 2**r: of 3, 5 and 7 the last is missing from the sum."""
        gradients = [{"layer": {"kernel": np.full(2, 2.0**replica)}} for replica in range(devices)]
        assert sum_in_two_halves(gradients)["layer"]["kernel"].tolist() == [found, found]

    def test_changes_no_gradient(self):
        """What it is given stays as it was."""
        gradients = [{"layer": {"kernel": np.full(2, 2.0**replica)}} for replica in range(3)]
        sum_in_two_halves(gradients)
        assert [one["layer"]["kernel"].tolist() for one in gradients] == [[1, 1], [2, 2], [4, 4]]


class TestTraining:
    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("devices", [2, 3, 5, 7, 8, 10])
    def test_with_treefold_ends_where_one_device_ends(self, digits, devices, shuffle):
        """Over any number of devices, however examples are dealt, the weights are those of one device."""
        result = train(digits, devices=devices, shuffle=shuffle)
        assert measure_difference(result, result.treefold) < 1e-6
        assert np.allclose(result.treefold.losses, result.alone.losses, rtol=1e-5)

    @pytest.mark.parametrize("devices", [3, 5, 7, 9])
    def test_with_tensorflows_rule_never_learns_what_the_last_device_holds(self, digits, devices):
        """Of an odd number of devices the last is lost: none of its digits is recognised, and the loss stays high."""
        result = train(digits, devices=devices, steps=60)
        assert result.tensorflow.accuracy_last == 0
        assert result.alone.accuracy_last > 0.5
        assert result.tensorflow.losses[-1] > 2 * result.alone.losses[-1]

    def test_with_tensorflows_rule_hardly_shows_when_examples_are_dealt_at_random(self, digits):
        """The weights are wrong, but nothing in the accuracy says so."""
        result = train(digits, steps=110, shuffle=True)
        assert measure_difference(result, result.tensorflow) > 1e-2
        assert abs(result.tensorflow.accuracy - result.alone.accuracy) < 0.02

    def test_follows_the_weights_step_by_step(self, digits):
        """The distance after the last step is that of the weights in the end; one device is at none."""
        result = train(digits, steps=5)
        assert result.alone.apart == (0,) * 5
        for training in (result.treefold, result.tensorflow):
            assert len(training.apart) == 5
            assert training.apart[-1] == measure_difference(result, training)

    def test_gives_each_replica_weights_of_its_own(self, digits):
        """Replicas hold the same bits in different memory."""
        first, second, third = train(digits).treefold.parameters
        assert digest(first) == digest(second) == digest(third)
        assert not np.shares_memory(first["layer_1"]["kernel"], second["layer_1"]["kernel"])

    def test_gives_the_same_bits_with_every_ops(self, digits):
        """On host memory neither the tree nor the packing changes a bit."""
        choices = [HierarchicalCopyAllReduce(), HierarchicalCopyAllReduce(num_packs=5), ReductionToOneDevice()]
        results = [train(digits, ops=ops) for ops in choices]
        assert len({digest(result.treefold.parameters[0]) for result in results}) == 1

    def test_repeats_with_its_seed(self, digits):
        """One seed, one result; another seed, another."""
        bits = [digest(train(digits, seed=seed).treefold.parameters[0]) for seed in (0, 0, 1)]
        assert bits[0] == bits[1] != bits[2]

    def test_reports_each_step(self, digits):
        """The callback hears of every step once, when all three trainings have made it."""
        heard = []
        train(digits, steps=3, on_step=lambda: heard.append(1))
        assert len(heard) == 3


class TestChecks:
    @staticmethod
    def verdicts(result):
        """Return which checks hold: plan, same bits, any order, treefold's weights, TensorFlow's rule."""
        return [check.holds for check in check_result(result)]

    @pytest.mark.parametrize("steps", [1, 2, 60])
    @pytest.mark.parametrize("devices", [3, 4])
    def test_hold_after_any_number_of_steps(self, digits, devices, steps):
        """They compare trainings with each other, so that a short one proves as much as a long one."""
        assert self.verdicts(train(digits, devices=devices, steps=steps)) == [True] * 5

    def test_say_what_tensorflows_rule_does(self, digits):
        """It loses one of an odd number, and none of an even one."""
        odd, even = (check_result(train(digits, devices=devices, steps=1))[-1].claim for devices in (3, 4))
        assert odd == "With TensorFlow's rule they do not: it never reads device 2, and raises no error"
        assert even == "TensorFlow's rule trains them, too, as 4 is an even number; of 3, 5 or 7 devices it loses one"

    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("devices", [3, 8, 10])
    def test_see_a_lost_replica(self, digits, devices, shuffle):
        """Ops that lose one replica are seen by the difference after one step."""
        result = train(digits, ops=LosesTheLastReplica(), devices=devices, steps=1, shuffle=shuffle)
        assert self.verdicts(result)[:4] == [True, True, True, False]
        assert measure_difference(result, result.treefold) > 100 * LARGEST_DIFFERENCE

    def test_see_one_different_bit(self, digits):
        """One replica with one other bit is seen, far below the bound of the difference."""
        result = train(digits, steps=2)
        odd = copy_parameters(result.treefold.parameters[1])
        odd["layer_2"]["bias"][0] = np.nextafter(odd["layer_2"]["bias"][0], np.float32(1))
        parameters = (result.treefold.parameters[0], odd, result.treefold.parameters[2])
        changed = dataclasses.replace(result, treefold=dataclasses.replace(result.treefold, parameters=parameters))
        assert self.verdicts(changed) == [True, False, True, True, True]


class TestMeasureSpeed:
    def test_is_the_median_of_both_in_turns(self):
        """On a clock that ticks once per look every sum takes a tick, and the sizes are those of one device."""
        clock = itertools.count().__next__
        speed = measure_speed(HierarchicalCopyAllReduce(), devices=3, clock=clock, shapes=[(2, 3), (5,)])
        assert (speed.treefold_s, speed.loop_s, speed.ratio) == (1, 1, 1)
        assert (speed.devices, speed.arrays, speed.nbytes) == (3, 2, 44)

    def test_refuses_to_time_a_wrong_sum(self):
        """Ops that lose a replica are quick, and would win."""

        class Idle(HierarchicalCopyAllReduce):
            """Ops that do nothing."""

            def reduce(self, *_, destinations, out):
                """Return what came in."""
                return destinations, out

        with pytest.raises(AssertionError):
            measure_speed(Idle(), devices=3, clock=itertools.count().__next__, shapes=[(4,)])
