"""Tickets: what one rank has to know to find the others on its host, as plain text."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

from treefold.errors import ConnectError

MOST_RANKS = 255
_SOCKET = "s"
#: A socket's path has 107 bytes at most.
_LONGEST_PARENT = 107 - len("/treefold-12345678/s~")


@dataclass(frozen=True, slots=True)
class Ticket:
    """What rank ``rank`` of ``size`` shows to be let into a group.

    ``folder``: where rank 0 listens, readable by this user only, and gone once the group has formed. ``token``: a
    secret of 256 bits, in hexadecimal. Ranks that connect again show the same tickets, also new processes in the place
    of others.
    """

    folder: str
    token: str
    rank: int
    size: int

    @classmethod
    def for_ranks(cls, size: int) -> list[str]:
        """Return one ticket as text for each of ``size`` ranks, for ``multiprocessing`` children for instance.

        Raises:
            ConnectError: no host has so many ranks.

        >>> tickets = Ticket.for_ranks(2)
        >>> [Ticket.read(text).rank for text in tickets]
        [0, 1]
        """
        if type(size) is not int or not 1 <= size <= MOST_RANKS:
            raise ConnectError(f"A host has 1 to {MOST_RANKS} ranks, and {size!r} were asked for.")
        folder = tempfile.mkdtemp(prefix="treefold-", dir=_parent())
        token = secrets.token_hex(32)
        return [str(cls(folder, token, rank, size)) for rank in range(size)]

    @classmethod
    def read(cls, text: str) -> Ticket:
        """Return the ticket that a text is.

        Raises:
            ConnectError: it is none.

        """
        try:
            folder, token, rank, size = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            raise ConnectError.ticket(str(text)) from None
        is_right = isinstance(folder, str) and isinstance(token, str) and type(rank) is int and type(size) is int
        if not is_right or not 0 <= rank < size <= MOST_RANKS:
            raise ConnectError.ticket(text)
        return cls(folder, token, rank, size)

    @property
    def address(self) -> str:
        """Where rank 0 listens."""
        return str(Path(self.folder, _SOCKET))

    def discard(self) -> None:
        """Take the folder away, if it is there; without a descriptor, because there may be none left."""
        for path in (f"{self.address}~", self.address):
            with contextlib.suppress(OSError):
                Path(path).unlink()
        with contextlib.suppress(OSError):
            Path(self.folder).rmdir()

    def __str__(self) -> str:
        """Return the text that ``read`` reads."""
        return json.dumps([self.folder, self.token, self.rank, self.size])


def _parent() -> str:
    """Return the folder for temporary files, or a shorter one where no socket could have its name."""
    parent = tempfile.gettempdir()
    return parent if len(os.fsencode(parent)) <= _LONGEST_PARENT else "/tmp"  # noqa: S108 - for mkdtemp
