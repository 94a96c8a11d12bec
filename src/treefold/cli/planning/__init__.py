"""The commands ``treefold topology``, ``treefold plan`` and ``treefold simulate``."""
