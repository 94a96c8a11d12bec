"""What ``benchmarks/memory.py`` measures, beside which libraries, and the page that it writes."""
