"""Groups: processes that reduce together, and how they find each other."""

from treefold.group.connecting import connect
from treefold.group.group import Group
from treefold.group.ticket import Ticket

__all__ = ["Group", "Ticket", "connect"]
