"""Plans for other programs: MSCCL's XML, tables by size, Graphviz.

``treefold.export.msccl`` writes, ``msccl_xml`` reads, and ``msccl_run`` runs what was read, to prove that it is right.
"""
