"""Other libraries on the same work: one file each, run in processes of their own.

A peer never shares a process with treefold or with another peer: each has its own threads, allocator and environment.
``registry`` names them, ``team`` starts and questions them, ``worker`` is the program that answers.
"""

from treefold.bench.peers.registry import PEERS, PeerInfo, find_missing
from treefold.bench.peers.team import Team

__all__ = ["PEERS", "PeerInfo", "Team", "find_missing"]
