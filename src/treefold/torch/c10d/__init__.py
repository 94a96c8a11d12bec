"""PyTorch's backend ``"treefold"``: turns calls of ``torch.distributed`` into calls of treefold's groups."""
