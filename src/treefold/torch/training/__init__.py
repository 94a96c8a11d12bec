"""Training whose bits do not depend on the number of ranks: micro-batches that any rank may compute."""

from treefold.torch.training.micro_batches import MicroBatches

__all__ = ["MicroBatches"]
