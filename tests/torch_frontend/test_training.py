import copy

import pytest
import torch

from treefold.torch import all_reduce_, average_models, broadcast_coalesced, reduce_add_coalesced


def network():
    torch.manual_seed(3)
    layers = (torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    return torch.nn.Sequential(*layers).double()


def batch(step, size):
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(size, 6, dtype=torch.float64, generator=generator)
    return inputs, inputs[:, :3].sin()


def backward(model, inputs, targets):
    model.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()


def train_alone(steps, size):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.3, momentum=0.9)
    for step in range(steps):
        backward(model, *batch(step, size))
        optimizer.step()
    return model


def gradients(model):
    return [parameter.grad for parameter in model.parameters()]


def are_close(one, two):
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in pairs)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
class TestTraining:
    """Replicas on parts of a batch become what one model becomes on the whole batch."""

    def test_with_gradients_reduced_in_place(self, count):
        models = [network() for _ in range(count)]
        optimizers = [torch.optim.SGD(model.parameters(), 0.3, momentum=0.9) for model in models]
        for step in range(10):
            inputs, targets = batch(step, 12)
            for model, *part in zip(models, inputs.chunk(count), targets.chunk(count), strict=True):
                backward(model, *part)
            all_reduce_([gradients(model) for model in models], "mean")
            for optimizer in optimizers:
                optimizer.step()
        assert are_close(models[0], train_alone(10, 12))
        for model in models[1:]:
            assert all(torch.equal(a, b) for a, b in zip(model.parameters(), models[0].parameters(), strict=True))

    def test_as_data_parallel_does(self, count):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.3, momentum=0.9)
        replicas = [copy.deepcopy(model) for _ in range(count)]
        for step in range(10):
            copies = broadcast_coalesced(model.parameters(), ["cpu"] * count)
            inputs, targets = batch(step, 12)
            for replica, tensors, *part in zip(
                replicas, copies, inputs.chunk(count), targets.chunk(count), strict=True
            ):
                for parameter, tensor in zip(replica.parameters(), tensors, strict=True):
                    parameter.data = tensor
                backward(replica, *part)
            total = reduce_add_coalesced([gradients(replica) for replica in replicas], op="mean")
            for parameter, gradient in zip(model.parameters(), total, strict=True):
                parameter.grad = gradient
            optimizer.step()
        assert are_close(model, train_alone(10, 12))

    def test_with_models_averaged_after_each_step(self, count):
        """For plain SGD from equal weights, the mean of the steps is the step of the mean."""
        start = network()
        for step in range(10):
            models = [copy.deepcopy(start) for _ in range(count)]
            inputs, targets = batch(step, 12)
            for model, *part in zip(models, inputs.chunk(count), targets.chunk(count), strict=True):
                backward(model, *part)
                torch.optim.SGD(model.parameters(), 0.3).step()
            start = average_models(models)
        alone = network()
        for step in range(10):
            backward(alone, *batch(step, 12))
            torch.optim.SGD(alone.parameters(), 0.3).step()
        assert are_close(start, alone)
