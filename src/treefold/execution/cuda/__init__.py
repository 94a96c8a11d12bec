"""Reductions on GPUs: many arrays in one launch on one device, and plans as streams of chunks across several."""
