"""The measurements of ``benchmarks/memory.py``, the libraries beside treefold, and the page."""
