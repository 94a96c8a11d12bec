"""Measures on GPUs, against the GPU's own copies, the bus between it and the host, and PyTorch's functions."""
