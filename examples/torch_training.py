"""Train one model on four replicas with PyTorch, and reduce the gradients in place at every step.

Each replica sees a quarter of the batch. The loss falls, and all replicas hold the same bits in the end.
Run it: python examples/torch_training.py
"""

import torch

from treefold.torch import all_reduce_

REPLICAS, STEPS = 4, 40


def make_replicas() -> list[torch.nn.Module]:
    """Return models that start with the same parameters."""
    models = [
        torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)) for _ in range(REPLICAS)
    ]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    return models


def main() -> None:
    """Train, and check that the replicas stayed equal."""
    torch.manual_seed(0)
    inputs = torch.randn(256, 8)
    targets = inputs[:, :1] * inputs[:, 1:2]
    models = make_replicas()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9) for model in models]

    for step in range(STEPS):
        losses = []
        for model, x, y in zip(models, inputs.chunk(REPLICAS), targets.chunk(REPLICAS), strict=True):
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            losses.append(loss.item())
        all_reduce_([[p.grad for p in model.parameters()] for model in models], "mean")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if step % 10 == 0 or step == STEPS - 1:
            print(f"step {step:2d}: mean loss of {REPLICAS} replicas {sum(losses) / REPLICAS:.4f}")

    states = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models]
    print("all replicas hold the same bits:", all(torch.equal(state, states[0]) for state in states))


if __name__ == "__main__":
    main()
