import math

import numpy as np
import pytest

from treefold.cli.training import Examples, Training, descend, differentiate, draw_parameters, run_layers

SIZES = (5, 7, 6, 3)


@pytest.fixture
def parameters():
    drawn = draw_parameters(np.random.default_rng(1), SIZES)
    return {name: array.astype(np.float64) for name, array in drawn.items()}


@pytest.fixture
def examples():
    rng = np.random.default_rng(2)
    return Examples(rng.normal(size=(11, 5)), rng.integers(0, 3, size=11))


class TestDifferentiate:
    @pytest.mark.parametrize("name", [f"layer_{number}/{name}" for number in (1, 2, 3) for name in ("kernel", "bias")])
    def test_gradients_are_those_of_finite_differences(self, parameters, examples, name):
        _, gradients = differentiate(parameters, examples, 11)
        array, h = parameters[name], 1e-6
        for index in np.ndindex(array.shape):
            losses = []
            for shift in (h, -2 * h):
                array[index] += shift
                losses.append(differentiate(parameters, examples, 11)[0])
            array[index] += h
            assert gradients[name][index] == pytest.approx((losses[0] - losses[1]) / (2 * h), abs=1e-8)

    def test_loss_is_the_mean_cross_entropy(self, parameters, examples):
        shares = np.exp(run_layers(parameters, examples.images)[-1])
        shares /= shares.sum(axis=1, keepdims=True)
        expected = -np.mean(np.log(shares[np.arange(11), examples.labels]))
        assert differentiate(parameters, examples, 11)[0] == pytest.approx(expected)

    @pytest.mark.parametrize("cuts", [[4, 8], [1, 2], [10]])
    def test_parts_of_a_batch_add_up_to_the_batch(self, parameters, examples, cuts):
        whole_loss, whole = differentiate(parameters, examples, 11)
        parts = [differentiate(parameters, examples.pick(part), 11) for part in np.split(np.arange(11), cuts)]
        for name, array in whole.items():
            assert np.abs(sum(gradients[name] for _, gradients in parts) - array).max() < 1e-15
        assert math.fsum(loss for loss, _ in parts) == pytest.approx(whole_loss)

    def test_has_no_overflow_at_large_logits(self, parameters, examples):
        for name in parameters:
            parameters[name] *= 5000 if name.endswith("kernel") else 1
        assert math.isfinite(differentiate(parameters, examples, 11)[0])

    def test_keeps_float32(self, examples):
        parameters = draw_parameters(np.random.default_rng(1), SIZES)
        _, gradients = differentiate(parameters, Examples(examples.images.astype(np.float32), examples.labels), 11)
        assert {*gradients} == {*parameters}
        assert {array.dtype for array in gradients.values()} == {np.dtype("float32")}


class TestDescend:
    def test_follows_its_formula(self, parameters):
        start, velocity = parameters["layer_1/kernel"].copy(), {}
        for _ in range(2):
            descend(parameters, velocity, {name: np.ones_like(array) for name, array in parameters.items()})
        assert np.allclose(start - parameters["layer_1/kernel"], 0.1 * (1 + 1.9))


class TestParameters:
    def test_start_with_zero_biases_and_bounded_kernels(self, parameters):
        """Glorot's limit √(6 / (inputs + outputs)) bounds each kernel."""
        assert not parameters["layer_1/bias"].any()
        assert np.abs(parameters["layer_1/kernel"]).max() <= math.sqrt(6 / 12)


class TestTraining:
    @pytest.fixture
    def training(self, parameters):
        training = object.__new__(Training)
        training.parameters = [{name: array.copy() for name, array in parameters.items()} for _ in range(2)]
        return training

    def test_distance_is_found_anywhere(self, training, parameters):
        alone = object.__new__(Training)
        alone.parameters = [parameters]
        assert training.distance(alone) == 0
        training.parameters[1]["layer_2/bias"][3] += 0.25
        training.parameters[0]["layer_1/kernel"][0, 0] -= 0.125
        assert training.distance(alone) == 0.25

    def test_accuracy_is_the_share_of_right_answers(self, training, examples):
        answers = run_layers(training.parameters[0], examples.images)[-1].argmax(axis=1)
        assert training.accuracy(Examples(examples.images, answers)) == 1
        assert training.accuracy(Examples(examples.images, (answers + 1) % 3)) == 0
