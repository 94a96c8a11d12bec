"""What must be loaded first, before any test's or doctest's own imports."""

import contextlib
import os
from pathlib import Path

# Without a GPU, kernels run in Triton's interpreter; Triton looks when it is loaded.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# Triton and TensorFlow each bring an LLVM with the same command line options. Loaded behind TensorFlow, which PyTorch's
# optimizers do, Triton aborts the process ("registered more than once"); the other way round both work.
with contextlib.suppress(ImportError):
    import triton._C.libtriton  # noqa: F401
