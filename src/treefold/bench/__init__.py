"""Measuring reductions: what is run, how it is timed and checked, what it is compared with, how it is written down."""
