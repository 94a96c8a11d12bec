"""Federated averaging: clients train on their own data, and the server takes the mean of their models, by examples.

Run it: python examples/federated.py
"""

import copy

import torch

from treefold.torch import average_models

CLIENT_SIZES = [200, 60, 20]  # examples per client: the first knows most, and counts most
ROUNDS = 5


def make_clients() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return data per client; each sees another part of the inputs, and none sees them all."""
    clients = []
    for number, size in enumerate(CLIENT_SIZES):
        x = torch.rand(size, 1) * 2 - 1 + 0.5 * (number - 1)
        clients.append((x, 2 * x + 1 + 0.1 * torch.randn(size, 1)))
    return clients


def train(server: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.nn.Module:
    """Return a copy of the server's model after ten local steps."""
    model = copy.deepcopy(server)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


def main() -> None:
    """Run the rounds and show what the server has learned."""
    torch.manual_seed(0)
    clients = make_clients()
    everything = [torch.cat(parts) for parts in zip(*clients, strict=True)]
    server = torch.nn.Linear(1, 1)
    for number in range(ROUNDS):
        models = [train(server, x, y) for x, y in clients]
        server = average_models(models, weights=CLIENT_SIZES)  # models in, a model out
        with torch.no_grad():
            loss = torch.nn.functional.mse_loss(server(everything[0]), everything[1]).item()
        print(f"round {number + 1}: loss on all clients' data {loss:.4f}")
    print(f"the server found y = {server.weight.item():.2f}x + {server.bias.item():.2f}; the data say y = 2x + 1")


if __name__ == "__main__":
    main()
