"""Training in micro-batches, which any rank may compute: the bits do not depend on the number of ranks."""

from treefold.torch.training.micro_batches import MicroBatches

__all__ = ["MicroBatches"]
