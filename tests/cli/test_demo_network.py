import math

import numpy as np
import pytest

from treefold.cli.demo.network import (
    Momentum,
    copy_parameters,
    count_parameters,
    differentiate,
    digest,
    draw_parameters,
    find_largest_difference,
    measure_accuracy,
    predict,
    zeros_like,
)

SIZES = (5, 7, 6, 3)


@pytest.fixture
def parameters():
    """Return a small network in float64."""
    return draw_parameters(SIZES, np.random.default_rng(1), dtype=np.float64)


@pytest.fixture
def examples():
    """Return eleven images and their labels."""
    rng = np.random.default_rng(2)
    return rng.normal(size=(11, 5)), rng.integers(0, 3, size=11)


class TestDifferentiate:
    @pytest.mark.parametrize("layer", ["layer_1", "layer_2", "layer_3"])
    @pytest.mark.parametrize("name", ["kernel", "bias"])
    def test_gradients_are_those_of_finite_differences(self, parameters, examples, layer, name):
        """Every element's gradient agrees with a central difference of the loss, in float64."""
        _, gradients = differentiate(parameters, *examples, batch_size=11)
        array, h = parameters[layer][name], 1e-6
        for index in np.ndindex(array.shape):
            losses = []
            for shift in (h, -2 * h):
                array[index] += shift
                losses.append(differentiate(parameters, *examples, batch_size=11)[0])
            array[index] += h
            assert gradients[layer][name][index] == pytest.approx((losses[0] - losses[1]) / (2 * h), abs=1e-8)

    def test_loss_is_the_mean_cross_entropy(self, parameters, examples):
        """The loss is −log of the softmax at the label, averaged."""
        images, labels = examples
        shares = np.exp(predict(parameters, images))
        shares /= shares.sum(axis=1, keepdims=True)
        expected = -np.mean(np.log(shares[np.arange(11), labels]))
        assert differentiate(parameters, images, labels, batch_size=11)[0] == pytest.approx(expected)

    @pytest.mark.parametrize("cuts", [[4, 8], [1, 2], [10]])
    def test_parts_of_a_batch_add_up_to_the_batch(self, parameters, examples, cuts):
        """However unevenly a batch is cut, its parts' gradients and losses sum to those of the whole."""
        images, labels = examples
        whole_loss, whole = differentiate(parameters, images, labels, batch_size=11)
        parts = [
            differentiate(parameters, x, y, batch_size=11)
            for x, y in zip(np.split(images, cuts), np.split(labels, cuts), strict=True)
        ]
        summed = {
            layer: {name: sum(part[layer][name] for _, part in parts) for name in arrays}
            for layer, arrays in whole.items()
        }
        assert find_largest_difference(summed, whole) < 1e-15
        assert math.fsum(loss for loss, _ in parts) == pytest.approx(whole_loss)

    def test_has_no_overflow_at_large_logits(self, parameters, examples):
        """The softmax is shifted, so that logits in the thousands give a finite loss."""
        for arrays in parameters.values():
            arrays["kernel"] *= 5000
        assert math.isfinite(differentiate(parameters, *examples, batch_size=11)[0])

    def test_keeps_float32(self, examples):
        """A float32 network has float32 gradients, in the structure of its parameters."""
        parameters = draw_parameters(SIZES, np.random.default_rng(1))
        images, labels = examples
        _, gradients = differentiate(parameters, images.astype(np.float32), labels, batch_size=11)
        assert list(gradients) == list(parameters)
        assert {array.dtype for arrays in gradients.values() for array in arrays.values()} == {np.dtype("float32")}


class TestMomentum:
    def test_follows_its_formula(self, parameters):
        """Two steps with the gradient 1 move by learning_rate·(1 + (1 + momentum))."""
        ones = {layer: {name: np.ones_like(a) for name, a in arrays.items()} for layer, arrays in parameters.items()}
        start, velocity = copy_parameters(parameters), zeros_like(parameters)
        for _ in range(2):
            Momentum(learning_rate=0.5, momentum=0.25).update(parameters, velocity, ones)
        assert np.allclose(start["layer_1"]["kernel"] - parameters["layer_1"]["kernel"], 0.5 * (1 + 1.25))


class TestParameters:
    def test_start_with_zero_biases_and_bounded_kernels(self, parameters):
        """Glorot's limit √(6 / (inputs + outputs)) bounds each kernel."""
        assert not parameters["layer_1"]["bias"].any()
        assert np.abs(parameters["layer_1"]["kernel"]).max() <= math.sqrt(6 / 12)

    def test_are_counted(self, parameters):
        """5·7+7 + 7·6+6 + 6·3+3."""
        assert count_parameters(parameters) == 111

    def test_copies_share_no_memory(self, parameters):
        """A copy is a replica's own."""
        copy = copy_parameters(parameters)
        assert not np.shares_memory(copy["layer_2"]["kernel"], parameters["layer_2"]["kernel"])

    def test_digest_tells_one_bit(self, parameters):
        """Equal bits have one digest; one changed bit, even the sign of a zero, another."""
        copy = copy_parameters(parameters)
        assert digest(copy) == digest(parameters)
        copy["layer_3"]["bias"][0] = -0.0
        assert digest(copy) != digest(parameters)

    def test_largest_difference_is_found_anywhere(self, parameters):
        """The difference is the largest over all layers and names."""
        copy = copy_parameters(parameters)
        copy["layer_2"]["bias"][3] += 0.25
        copy["layer_1"]["kernel"][0, 0] -= 0.125
        assert find_largest_difference(parameters, copy) == 0.25

    def test_accuracy_is_the_share_of_right_answers(self, parameters, examples):
        """All right is 1, all wrong is 0."""
        images, _ = examples
        answers = predict(parameters, images).argmax(axis=1)
        assert measure_accuracy(parameters, images, answers) == 1
        assert measure_accuracy(parameters, images, (answers + 1) % 3) == 0
