"""The lab: hosts on one Linux machine, with cables between them that are as slow as you say.

Each host is a set of Linux namespaces (network, mounts, processes, host name) that one process holds open. A switch is
a bridge. A cable is a pair of virtual NICs, shaped in both directions. Nothing has a name outside the lab: when the
process that made it ends, for whatever reason, the kernel removes all of it.
"""

from .hosts import Host, LabError
from .lab import Lab, missing
from .networks import Cable, Network, Trunk, racks, rails, star

__all__ = ["Cable", "Host", "Lab", "LabError", "Network", "Trunk", "missing", "racks", "rails", "star"]
