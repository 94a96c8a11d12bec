"""Clip gradients by their exact norm, which is the same however a model is cut.

Run it: python examples/clipping.py
"""

import torch

from treefold import exact
from treefold.torch import clip_grad_norm_


def main() -> None:
    """Take the norm of gradients in one piece and in several, and clip them by it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8))
    inputs = torch.randn(64, 32)
    (model(inputs) - 3 * inputs[:, :8]).square().sum(1).mean().backward()
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    # As tensor parallelism, FSDP or a pipeline would cut them; on several ranks it is norm(part, group=group).
    norm = exact.norm(gradients)
    print(f"the norm in one piece is {norm:.6f}")
    pieces = (2, 3, 5, 8)
    same = [torch.equal(norm, exact.norm(gradients.chunk(count))) for count in pieces]
    print(f"the same bits in 2, 3, 5 and 8 pieces: {all(same)}")

    # torch.nn.utils.clip_grad_norm_ with another import.
    total = clip_grad_norm_(model.parameters(), max_norm=1.0)
    print(f"clip_grad_norm_ has found the same norm: {torch.equal(total, norm)}")
    print(f"the norm after clipping is {exact.norm([parameter.grad for parameter in model.parameters()]):.6f}")


if __name__ == "__main__":
    main()
