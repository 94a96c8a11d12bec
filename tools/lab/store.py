"""A store for PyTorch's ranks that no rank holds: ``python store.py ADDRESS PORT``, until the end of its input."""

import sys

from torch.distributed import TCPStore

if __name__ == "__main__":
    store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=True, wait_for_workers=False)
    print("listening", flush=True)
    sys.stdin.read()
