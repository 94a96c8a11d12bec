"""PyTorch's backend ``"treefold"``: what ``torch.distributed`` calls, as calls of treefold's groups."""
