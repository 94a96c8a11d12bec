"""Reductions between the hosts of a lab, measured against what their network allows; see ``benchmarks/hosts.py``."""
