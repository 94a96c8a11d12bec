"""The store of a fake network: what ranks say when they stop, and which of them go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fake_network.scheduler import Scheduler
from fake_network.wire import Decision, End, Session, Wire


class Store:
    """A mapping that survives the ranks, on none of their hosts, as a launcher's is."""

    def __init__(self, scheduler: Scheduler, wire: Wire) -> None:
        self._scheduler, self._wire = scheduler, wire

    def say(self, end: End, word: bytes, written: list[None]) -> None:
        """Write down why a rank stops, and answer."""

        def answer() -> None:
            written.append(None)
            self._wire.wake(end)

        def write() -> None:
            end.session.words[end.rank] = word
            self._later(end, answer)

        self._later(end, write)

    def look(self, end: End, answers: list[Mapping[int, bytes]]) -> None:
        """Answer with what ranks have written down so far."""

        def answer(words: Mapping[int, bytes]) -> None:
            answers.append(words)
            self._wire.wake(end)

        def read() -> None:
            words = {rank: word for rank, word in end.session.words.items() if rank != end.rank}
            self._later(end, lambda: answer(words))

        self._later(end, read)

    def decide(self, end: End, survivors: tuple[int, ...]) -> None:
        """Record the ranks that go on, unless they are decided; answer when they are, and all of them have come."""
        self._later(end, lambda: self._compare_and_set(end, survivors))

    def _compare_and_set(self, end: End, survivors: tuple[int, ...]) -> None:
        session = end.session
        if session.decision is None:
            session.decision = Decision(survivors, self._succeed(session, survivors))
        decision = session.decision
        if decision.members == survivors:
            decision.came.add(end.rank)
        self._later(end, lambda: self._answer(end, decision))
        if decision.have_all_come():
            for other in (session.ends[rank] for rank in decision.members):
                self._later(other, lambda other=other: self._answer(other, decision))  # type: ignore[misc]

    def _answer(self, end: End, decision: Decision) -> None:
        end.verdict, end.all_came = decision, decision.have_all_come()
        self._wire.wake(end)

    def _succeed(self, session: Session, survivors: tuple[int, ...]) -> list[End]:
        chosen = [session.ends[rank] for rank in survivors]
        successor = Session()
        successor.ends = [End(end.process, successor, rank, end.reports) for rank, end in enumerate(chosen)]
        for end in successor.ends:
            end.process.ends.append(end)
            if end.process.has_ended:
                end.is_closed = True
                self._wire.leave(end)
        return successor.ends

    def _later(self, end: End, action: Callable[[], None]) -> None:
        self._scheduler.at(self._scheduler.now + self._wire.delay(), self._arrive, end, action)

    def _arrive(self, end: End, action: Callable[[], None]) -> None:
        when = self._wire.open_at(end.process, None)
        if when > self._scheduler.now:
            self._scheduler.at(when, self._arrive, end, action)
        else:
            action()
