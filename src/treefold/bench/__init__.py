"""Measures reductions: the work, the clock, the checks, the baselines and the results."""
