"""Groups: processes that reduce together, and how they find each other."""

from treefold.group.bootstrap.connecting import connect
from treefold.group.bootstrap.rendezvous import Ticket
from treefold.group.group import Group

__all__ = ["Group", "Ticket", "connect"]
