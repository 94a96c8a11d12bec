"""Drawings and pages: machines, trees, movements, timelines."""
