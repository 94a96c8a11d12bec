"""``python -m treefold.cli`` is ``treefold``."""

from treefold.cli import main

main()
