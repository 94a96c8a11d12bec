"""Machines and the trees in them for other programs: Graphviz."""
