import dataclasses
import itertools

import numpy as np
import pytest

from treefold import HierarchicalCopyAllReduce, ReductionToOneDevice
from treefold.cli.demo.checks import check_result, measure_difference
from treefold.cli.demo.data import draw_batches
from treefold.cli.demo.figures import measure_reducing
from treefold.cli.demo.network import copy_parameters, digest
from treefold.cli.demo.train import BATCH_SIZE, train_both


def train(digits, *, ops=None, devices=3, steps=4, seed=0, on_step=lambda _: None):
    """Train shortly, on a clock that ticks once per look."""
    clock = itertools.count().__next__
    ops = ops or HierarchicalCopyAllReduce()
    return train_both(digits, ops=ops, devices=devices, steps=steps, seed=seed, clock=clock, on_step=on_step)


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


class TestTraining:
    @pytest.mark.parametrize("devices", [1, 2, 3, 5, 7, 8, BATCH_SIZE])
    def test_ends_where_training_alone_ends(self, digits, devices):
        """Over any number of devices, dividing the batch or not, the parameters are those of one device."""
        result = train(digits, devices=devices)
        assert measure_difference(result) < 1e-6
        assert np.allclose(result.replicas.losses, result.alone.losses, rtol=1e-5)

    def test_gives_each_replica_parameters_of_its_own(self, digits):
        """Replicas hold the same bits in different memory."""
        first, second, third = train(digits).replicas.parameters
        assert digest(first) == digest(second) == digest(third)
        assert not np.shares_memory(first["layer_1"]["kernel"], second["layer_1"]["kernel"])

    def test_gives_the_same_bits_with_every_ops(self, digits):
        """On host memory neither the tree nor the packing changes a bit."""
        choices = [HierarchicalCopyAllReduce(), HierarchicalCopyAllReduce(num_packs=5), ReductionToOneDevice()]
        results = [train(digits, ops=ops) for ops in choices]
        assert len({digest(result.replicas.parameters[0]) for result in results}) == 1

    def test_repeats_with_its_seed(self, digits):
        """One seed, one result; another seed, another."""
        bits = [digest(train(digits, seed=seed).replicas.parameters[0]) for seed in (0, 0, 1)]
        assert bits[0] == bits[1] != bits[2]

    def test_reduces_every_step(self, digits):
        """One reduction per step, each timed on the given clock."""
        result = train(digits, steps=5)
        assert result.reduce_seconds == (1, 1, 1, 1, 1)
        assert measure_reducing(result).total_s == 5

    def test_reports_each_step_of_both_trainings(self, digits):
        """The callback hears of every step, first of the replicas, then of the one alone."""
        heard = []
        train(digits, steps=3, on_step=heard.append)
        assert heard == ["replicas"] * 3 + ["alone"] * 3


class TestChecks:
    @staticmethod
    def verdicts(result):
        """Return which checks hold: accuracy, same bits, difference, plan."""
        return [check.holds for check in check_result(result)]

    def test_hold_after_enough_training(self, digits):
        """110 steps are enough."""
        assert self.verdicts(train(digits, steps=110)) == [True, True, True, True]

    def test_see_a_network_that_learned_too_little(self, digits):
        """After two steps only the accuracy is missing."""
        assert self.verdicts(train(digits, steps=2)) == [False, True, True, True]

    @pytest.mark.parametrize("devices", [3, 8, BATCH_SIZE])
    def test_see_a_lost_replica(self, digits, devices):
        """A reduction that loses one replica is seen by the difference, were it one of 128 for two steps."""
        result = train(digits, ops=LosesTheLastReplica(), devices=devices, steps=2)
        assert self.verdicts(result)[1:] == [True, False, True]

    def test_see_one_different_bit(self, digits):
        """One replica with one other bit is seen, far below the bound of the difference."""
        result = train(digits, steps=110)
        odd = copy_parameters(result.replicas.parameters[1])
        odd["layer_2"]["bias"][0] = np.nextafter(odd["layer_2"]["bias"][0], np.float32(1))
        parameters = (result.replicas.parameters[0], odd, result.replicas.parameters[2])
        changed = dataclasses.replace(result, replicas=dataclasses.replace(result.replicas, parameters=parameters))
        assert self.verdicts(changed) == [True, False, True, True]
