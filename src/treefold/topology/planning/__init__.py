"""Chooses the method of an all-reduce on one machine: trees, rings or hosts, compared by predicted times."""
