"""What the tests of all folders share: ``pretended``, and Ctrl-C."""

import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
# Shells start background jobs deaf to it, and so are all processes that these start.
signal.signal(signal.SIGINT, signal.default_int_handler)
