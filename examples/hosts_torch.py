"""Train one model with PyTorch on several hosts: a plain loop, in which the gradients are one value.

Run it: torchrun --nnodes 3 --rdzv-backend c10d --rdzv-endpoint host0:29500 examples/hosts_torch.py
(the same line on every host; to try it on one: torchrun --nproc-per-node 3 examples/hosts_torch.py)
"""

import torch

import treefold

STEPS = 30


def main() -> None:
    """Train as one rank; PyTorch's own process groups are not needed, and stay as they are."""
    with treefold.connect() as group:
        torch.manual_seed(0)
        inputs = torch.randn(240, 8)
        targets = inputs[:, :1] * inputs[:, 1:2]
        x, y = inputs[group.rank :: group.size], targets[group.rank :: group.size]  # every rank's share of the data
        model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
            group.all_reduce(gradients, "mean", out=gradients)  # one call for all, in place
            optimizer.step()
            mean = group.all_reduce(loss.detach(), "mean")
            if group.rank == 0 and (step % 10 == 0 or step == STEPS - 1):
                print(f"step {step:2d}: mean loss of {group.size} ranks {mean.item():.4f}")

        state = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        everyone = group.all_gather(state[None])
        if group.rank == 0:
            print("all ranks hold the same bits:", all(torch.equal(one, state) for one in everyone))


if __name__ == "__main__":
    main()
