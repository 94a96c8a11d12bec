"""The store of a fake network: what ranks say when they stop, and which of them go on."""

from __future__ import annotations

from collections.abc import Callable

from treefold.testing.fake_scheduler import Scheduler
from treefold.testing.fake_wire import End, Session, Wire


class Store:
    """A mapping that survives the ranks, on one host or on none of theirs, as a launcher's is."""

    def __init__(self, scheduler: Scheduler, wire: Wire, host: int | None) -> None:
        """Begin empty."""
        self._scheduler, self._wire, self._host = scheduler, wire, host

    def say(self, end: End, said: bytes) -> None:
        """Write down why a rank stops, for all that do."""
        self._later(end, lambda: self._write(end, said))

    def _write(self, end: End, said: bytes) -> None:
        end.session.words[end.rank] = said
        for other in end.session.ends:
            if other.has_said and not other.is_closed:
                self._later(other, lambda other=other: self._read(other))  # type: ignore[misc]

    def _read(self, end: End) -> None:
        end.heard.update(end.session.words)
        self._wire.wake(end)

    def decide(self, end: End, survivors: tuple[int, ...]) -> None:
        """Write down who goes on, unless that is decided, and answer when it is, and when all of them have come."""
        self._later(end, lambda: self._compare_and_set(end, survivors))

    def _compare_and_set(self, end: End, survivors: tuple[int, ...]) -> None:
        session = end.session
        if not session.decided:
            session.decided = survivors
            session.successors = self._succeed(session)
        if session.decided == survivors:
            session.came[end.rank] = end
        self._later(end, lambda: self._answer(end))
        if len(session.came) == len(session.decided):
            for other in session.came.values():
                self._later(other, lambda other=other: self._answer(other))  # type: ignore[misc]

    def _answer(self, end: End) -> None:
        session = end.session
        end.verdict = session.decided
        end.all_came = len(session.came) == len(session.decided)
        self._wire.wake(end)

    def successor(self, end: End) -> End:
        """Return the end of a rank that goes on."""
        return end.session.successors[end.session.decided.index(end.rank)]

    def _succeed(self, session: Session) -> list[End]:
        chosen = [session.ends[rank] for rank in session.decided]
        successor = Session()
        successor.ends = [End(end.process, successor, rank, end.reports) for rank, end in enumerate(chosen)]
        for end in successor.ends:
            end.process.ends.append(end)
            if end.process.has_ended:
                end.is_closed = True
                self._wire.leave(end)
        return successor.ends

    def _later(self, end: End, action: Callable[[], None]) -> None:
        """Do something when a word between a rank and the store has arrived."""
        self._scheduler.at(self._scheduler.now + self._wire.delay(), self._arrive, end, action)

    def _arrive(self, end: End, action: Callable[[], None]) -> None:
        when = self._wire.open_at(end.process, self._host)
        if when > self._scheduler.now:
            self._scheduler.at(when, self._arrive, end, action)
        else:
            action()
