"""What must be loaded first, before any test's or doctest's own imports."""

import contextlib

# Triton and TensorFlow each bring an LLVM with the same command line options. Loaded behind TensorFlow, which PyTorch's
# optimizers do, Triton aborts the process ("registered more than once"); the other way round both work.
with contextlib.suppress(ImportError):
    import triton._C.libtriton  # noqa: F401
