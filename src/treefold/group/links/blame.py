"""Who is to blame when a call over hosts fails: every rank that stops says why, and all come to the same error."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from treefold.errors import DeadlineError, GroupError, PeerLostError

#: Why a rank stops: a connection broke, its deadline passed, it noticed that much too late, it has closed the group.
LOST, LATE, AWAY, LEFT = "lost", "late", "away", "left"
#: For how long a rank is away, at least; and for how long, at most, one that may only have waited for a core.
AWAY_S, _BUSY_S = 0.2, 1.0
#: Why ranks stop by themselves, the strongest first.
_STOPPED = ("interrupted", "failed", LEFT)


class Said(NamedTuple):
    """What a rank says when it stops: why, whom it waits for, and the last round that it has seen the end of."""

    cause: str
    suspects: frozenset[int]
    ended: int
    #: Whether that round has ended a call.
    holds: bool
    #: Of those that it waits for, the others: they may themselves wait.
    waiters: frozenset[int] = frozenset()
    #: For how many seconds it was away until then, stopped or in no call; 0 if it was there.
    away_s: float = 0.0

    def encode(self) -> bytes:
        """Return it as others read it."""
        said = [self.cause, sorted(self.suspects), self.ended, self.holds, sorted(self.waiters), self.away_s]
        return json.dumps(said).encode()

    @staticmethod
    def read(said: bytes) -> Said:
        """Read what another rank has said; of one that gave up connecting, that it has left."""
        told = json.loads(said or b"[]")
        if len(told) != len(Said._fields):
            return Said("failed" if told else LEFT, frozenset(), 0, holds=False)
        cause, suspects, ended, holds, waiters, away_s = told
        return Said(str(cause), frozenset(suspects), int(ended), bool(holds), frozenset(waiters), float(away_s))


def have_answered(told: Mapping[int, bytes]) -> bool:
    """Tell whether all have answered whom those who have answered wait for."""
    answers = [Said.read(words) for words in told.values()]
    return told.keys() >= frozenset().union(*(said.suspects | said.waiters for said in answers))


def error_of(answers: Mapping[int, Said], rank: int) -> GroupError:
    """Return the error of a rank's call, from what the ranks that are left have said.

    Those who say themselves that they have stopped in this call are to blame; else those whom others wait for and who
    say nothing, unless one who has stopped later explains the broken connection. A rank that waits for a rank that
    waits is blameless. If all have answered, somebody was away until the others had given up: whom most of these miss;
    or nobody was, and what they sent was too slow.
    """
    sequence = answers[rank].ended + 1
    holders = sorted(other for other, said in answers.items() if said.holds and said.ended >= sequence)
    stopped = {other: said.cause for other, said in answers.items() if said.cause in _STOPPED}
    # Who has seen the end of this round and stopped later is to blame only if nobody else is.
    now = {other for other in stopped if answers[other].ended < sequence}
    late = {other: said for other, said in answers.items() if said.cause == LATE}
    # What was sent to one who was away may not have come to it yet, and it is no judge of who is late.
    there = [said for said in answers.values() if said.cause != AWAY]
    paused = {other for other, said in answers.items() if said.cause == AWAY and said.away_s > _BUSY_S}
    if not there and not paused:  # all that are left had to wait for a core
        there = [*answers.values()]
    suspects = frozenset().union(*(said.suspects for said in there))
    # Those who have come further wait for others that may still have to end this round.
    earliest = min((said.ended for said in there), default=0)
    waiters = frozenset().union(*(said.waiters for said in there if said.ended == earliest))
    # Whoever answers lives. Those whom others wait for besides come second: they may themselves only wait. Where it is
    # known who has stopped, or was away, they do not count: one that says nothing may have told the round, and be busy.
    is_known = suspects.intersection(stopped) or paused.intersection(suspects | waiters)
    silent = frozenset() if is_known else waiters.difference(answers)
    missing = suspects.difference(answers) or silent or _most_missed(answers, late)
    if now or (stopped and not missing):  # who has stopped later may have taken along what it had sent
        ended = now or suspects.intersection(stopped) or stopped.keys()
        cause = min((stopped[other] for other in ended), key=_STOPPED.index)
        ranks = sorted(other for other in ended if stopped[other] == cause)
        return PeerLostError.between_hosts(cause, ranks, holders)
    blamed = sorted(missing or suspects or waiters)
    if late and answers.keys() >= {*blamed} and not any(said.away_s for said in answers.values()):
        return DeadlineError.slow(blamed, holders)
    if rank in blamed:
        return DeadlineError.given_up(rank, blamed, holders)
    if late or any(said.cause == AWAY for said in answers.values()):
        return DeadlineError.between_hosts(blamed, holders)
    return PeerLostError.between_hosts(LOST, blamed, holders)


def _most_missed(answers: Mapping[int, Said], late: Mapping[int, Said]) -> frozenset[int]:
    """Return whom most late ranks miss: of those who were away, if any; else of those not late; else of all."""
    counts = Counter(rank for said in late.values() for rank in said.suspects or said.waiters)
    # One that was in no call was away as well.
    judged = [said for said in answers.values() if said.cause == AWAY] or answers.values()
    longest = max(said.away_s for said in judged)
    # On a busy machine, one that was there may notice its deadline a little too late.
    away = frozenset(rank for rank, said in answers.items() if 0 < said.away_s >= longest / 2)
    # A late rank may miss all others, as where it takes what they make of each other's values, or only one that waits
    # for who was away; and ranks that hear of broken connections first are missed, too. Who was away says so, whether
    # its own deadline has passed or not.
    came_last = frozenset(rank for rank in away if answers[rank].cause == AWAY)
    were_away = away.intersection(counts) or came_last or (late and away)
    asked = were_away or frozenset(counts).difference(late) or frozenset(counts)
    return frozenset(rank for rank in asked if counts[rank] == max(counts[other] for other in asked))
