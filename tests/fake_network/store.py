"""The store of a fake network: what ranks say when they stop, and which of them go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fake_network.scheduler import Scheduler
from fake_network.wire import Decision, End, Session, Wire


class Store:
    """A mapping that survives the ranks, on one host or on none of theirs, as a launcher's is."""

    def __init__(self, scheduler: Scheduler, wire: Wire, host: int | None) -> None:
        """Begin empty."""
        self._scheduler, self._wire, self._host = scheduler, wire, host

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
        """Write down who goes on, unless that is decided, and answer when it is, and when all of them have come."""
        end.wanted, end.verdict, end.all_came = survivors, None, False
        self._later(end, lambda: self._compare_and_set(end, survivors))

    def _compare_and_set(self, end: End, survivors: tuple[int, ...]) -> None:
        decision = self._decision(end, survivors)
        while not self._is_untried(end, decision, survivors) and self._may_leave(end, decision, survivors):
            decision.is_void = True
            end.left += 1
            decision = self._decision(end, survivors)
        if decision.members == survivors:
            decision.came.add(end.rank)
        self._later(end, lambda: self._answer(end, survivors, decision))
        if decision.have_all_come():
            for other in (end.session.ends[rank] for rank in decision.members):
                self._later(other, lambda other=other: self._answer(other, survivors, decision))  # type: ignore[misc]

    def _decision(self, end: End, survivors: tuple[int, ...]) -> Decision:
        """Return the one that a rank has come to, which is its own if it is the first there."""
        session = end.session
        if end.left == len(session.decisions):
            session.decisions.append(Decision(survivors, self._succeed(session, survivors)))
        return session.decisions[end.left]

    def _is_untried(self, end: End, decision: Decision, survivors: tuple[int, ...]) -> bool:
        return decision.members == survivors and end.rank not in decision.came

    def _may_leave(self, end: End, decision: Decision, survivors: tuple[int, ...]) -> bool:
        """Tell whether it is void, or this rank has tried to join it in vain and wants fewer."""
        has_tried_in_vain = end.rank in decision.came and not decision.have_all_come()
        return decision.is_void or (has_tried_in_vain and {*survivors} < {*decision.members})

    def _answer(self, end: End, wanted: tuple[int, ...], decision: Decision) -> None:
        if end.wanted == wanted:  # it may have asked for something else since
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
        """Do something when a word between a rank and the store has arrived."""
        self._scheduler.at(self._scheduler.now + self._wire.delay(), self._arrive, end, action)

    def _arrive(self, end: End, action: Callable[[], None]) -> None:
        when = self._wire.open_at(end.process, self._host)
        if when > self._scheduler.now:
            self._scheduler.at(when, self._arrive, end, action)
        else:
            action()
