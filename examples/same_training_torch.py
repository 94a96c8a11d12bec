"""Check in CI that a training in PyTorch has the same bits on 1, 2 and 3 ranks.

A step has 6 micro-batches, which any rank may compute. pytest runs the last function, too.
Run it: python examples/same_training_torch.py
"""

from collections.abc import Iterator

import torch
from torch import nn

import treefold.torch
from treefold.testing import assert_same_training


def train() -> Iterator[dict[str, str]]:
    """Train on the ranks of this process's group; yield what the run holds after each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def compute(step: int, index: int) -> None:  # noqa: ARG001 - generators are seeded by them
        x = torch.randn(16, 8)  # a real program reads the rows of micro-batch `index`
        loss = (model(x) - x[:, :1].sin()).square().mean()
        loss.backward()
        run.log(loss=loss)

    with treefold.connect() as group:
        run = treefold.torch.MicroBatches(model, group, per_step=6, seed=1)
        run.check(optimizer, compute)
        for step in range(20):
            for index in run.mine(step):
                with run.micro_batch(step, index):
                    compute(step, index)
            run.reduce(max_norm=1.0)
            optimizer.step()
            yield run.digests(optimizer)
        sha = run.sha256(optimizer)
        if group.rank == 0:
            print(f"ranks: {group.size}, loss {run.logged['loss']:.4f}, SHA {sha[:12]}", flush=True)


def test_has_the_same_bits_on_any_ranks() -> None:
    """Name the first step and thing that differ."""
    assert_same_training(train, ranks=(1, 2, 3))


if __name__ == "__main__":
    test_has_the_same_bits_on_any_ranks()
    print("the same bits on 1, 2 and 3 ranks, after each step")
