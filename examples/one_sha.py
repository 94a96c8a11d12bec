"""Train a network with dropout on real digits: the same losses, norms and SHA on any number of ranks.

Run it: python examples/one_sha.py
On three ranks: treefold run -n 3 examples/one_sha.py, or torchrun --nproc-per-node 3 examples/one_sha.py
"""

import os

import torch
from sklearn.datasets import load_digits

import treefold
from treefold.torch import MicroBatches

STEPS, PER_STEP, EXAMPLES = 30, 24, 8


def main() -> None:
    """Train alone, or as one of the ranks that a launcher has started."""
    torch.set_num_threads(1)  # on every number of ranks, because a product's bits may depend on it
    torch.manual_seed(0)
    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(128, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    is_launched = "TREEFOLD_TICKET" in os.environ or "RANK" in os.environ
    group = treefold.connect() if is_launched else None
    run = MicroBatches(model, group, per_step=PER_STEP, seed=0)
    for step in range(STEPS):
        for index in run.mine(step):
            with run.micro_batch(step, index):  # seeds what is drawn here, so any rank may compute it
                chosen = torch.randint(len(images), (EXAMPLES,))
                loss = torch.nn.functional.cross_entropy(model(images[chosen].float() / 16), labels[chosen])
                loss.backward()
                run.log(loss=loss)
        norm = run.reduce(max_norm=1.0)
        optimizer.step()
        sha = run.sha256(optimizer)
        if run.rank == 0 and (step % 10 == 9 or step == 0):
            print(f"step {step:2d}: loss {run.logged['loss']:.9f}, norm {norm:.9f}, SHA {sha[:16]}")


if __name__ == "__main__":
    main()
