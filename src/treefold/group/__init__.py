"""Groups: processes that reduce together, and how they find each other.

>>> import treefold
>>> ticket = treefold.Ticket.for_ranks(1)[0]  # ``treefold run`` gives each process its own
>>> with treefold.connect(ticket) as group:
...     print(group.all_reduce(1.5, "mean"), group.rank, group.size)
1.5 0 1
"""

from treefold.group.bootstrap.connecting import connect
from treefold.group.bootstrap.rendezvous import Ticket
from treefold.group.group import Group

__all__ = ["Group", "Ticket", "connect"]
