"""A network in one process: ranks as threads, virtual time, and every delay and fault drawn from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, NoReturn

from fake_network.errors import ChannelUseError
from fake_network.faults import Cut, Fault, Kill, Stop
from fake_network.scheduler import Scheduler
from fake_network.store import Store
from fake_network.wire import End, Process, SendReport, Sent, Session, Stream, Wire
from treefold.backends import HostArray
from treefold.engines.interface import Channel, Limits, Transfer
from treefold.errors import ConnectError, GroupError

_REPORTS: tuple[SendReport, ...] = ("copied", "received", "never")
_MOST_CALLS_BETWEEN_PAUSES = 32


class FakeNetwork:
    """Ranks that run one at a time, in an order that the seed draws, on a network with delays that it draws, too.

    Time passes only while all ranks wait, and costs nothing. Messages take 10 µs to 10 ms, and a few up to a second:
    those of different tags and peers overtake each other.

    >>> network = FakeNetwork(3, seed=1)
    >>> network.run(lambda channel: channel.rank)
    [0, 1, 2]
    """

    def __init__(
        self,
        size: int,
        seed: object,
        *,
        hosts: Sequence[int] | None = None,
        faults: Sequence[Fault] = (),
        limits: Limits | None = None,
        sends: SendReport | None = None,
        is_prompt: bool = False,
    ) -> None:
        """Make a network for one run.

        Args:
            size: the number of ranks.
            seed: decides everything that is drawn.
            hosts: the host of each rank; by default each has its own.
            faults: the faults that happen in the run.
            limits: those of the channels; by default 64 tags.
            sends: when sends are reported as done; drawn by default.
            is_prompt: True if no message, word, wake-up or pause takes longer than 10 ms.

        """
        self.hosts = tuple(range(size) if hosts is None else hosts)
        self.limits = limits or Limits(tags=64, message_bytes=1 << 31)
        #: What each rank did, in the order in which it happened: time, rank, and call.
        self.log: list[tuple[float, int, str]] = []
        random = Random(f"network {seed}")  # noqa: S311 - a test's choice
        self._random, self._scheduler = random.random, Scheduler(size, random)
        cuts = [fault for fault in faults if isinstance(fault, Cut)]
        self._wire = Wire(self._scheduler, random, cuts=cuts, is_prompt=is_prompt)
        self._store = Store(self._scheduler, self._wire)
        self._faults: dict[int, list[Kill | Stop]] = {rank: [] for rank in range(size)}
        for fault in faults:
            if not isinstance(fault, Cut):
                self._faults[fault.rank].append(fault)
        self._processes = [Process(rank, host) for rank, host in enumerate(self.hosts)]
        session = Session()
        reports = sends or _REPORTS[random.randrange(len(_REPORTS))]
        session.ends = [End(process, session, process.rank, reports) for process in self._processes]
        for process, end in zip(self._processes, session.ends, strict=True):
            process.ends.append(end)
        self._channels = [FakeChannel(self, end) for end in session.ends]

    @property
    def sends(self) -> Sequence[Sent]:
        return self._wire.sends

    def paused_s(self, rank: int) -> float:
        """Return for how long a rank has only been slow, so far."""
        return self._processes[rank].paused_s

    def be_busy(self, rank: int, seconds: float) -> None:
        """Let time pass on a rank, in which it calls nothing; for the function that ``run`` calls there."""
        self._sleep(self._processes[rank], self._scheduler.now + seconds)

    def run(self, function: Callable[[FakeChannel], Any]) -> list[Any]:
        """Call the function on every rank, and return what each call returned or raised, or the fault that ended it.

        A rank ends when its function has returned, as a process does.

        Raises:
            HangError: no rank can go on, and nothing is on its way.
            ChannelUseError: the function uses its channel as no engine allows.

        """
        outcomes: list[Any] = [None] * len(self._processes)

        def task(process: Process) -> None:
            outcome: Any
            try:
                outcome = function(self._channels[process.rank])
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is this rank's
                outcome = error
            outcomes[process.rank] = process.ended_by or outcome
            self.end(process)

        self._scheduler.run([lambda process=process: task(process) for process in self._processes])  # type: ignore[misc]
        return outcomes

    def enter(self, process: Process, call: str) -> None:
        """Begin a call of a channel: the rank may be slow here, or stop, or die.

        Raises:
            SystemExit: the rank has died, or the run is over.

        """
        if process.has_ended or self._scheduler.failure is not None:
            raise SystemExit
        process.calls += 1
        self.log.append((self._scheduler.now, process.rank, call))
        if process.calls >= process.next_event:
            self._interrupt(process)

    def _interrupt(self, process: Process) -> None:
        later = []
        for fault in self._faults[process.rank]:
            if fault.call > process.calls:
                later.append(fault.call)
            elif fault.call < process.calls:
                continue
            elif isinstance(fault, Stop):
                self._stop(process, fault)
            else:
                self.end(process, fault)
                raise SystemExit
        pause = process.calls + 1 + int(self._random() * _MOST_CALLS_BETWEEN_PAUSES)
        if process.calls > 1:
            pause_s = self._wire.delay()
            process.paused_s += pause_s
            self._sleep(process, self._scheduler.now + pause_s)
        process.next_event = min(pause, *later) if later else pause

    def _stop(self, process: Process, fault: Stop) -> None:
        process.stopped_until = self._scheduler.now + fault.seconds
        self._sleep(process, process.stopped_until)
        if math.isinf(fault.seconds):  # the others have ended
            self.end(process, fault)
            raise SystemExit

    def _sleep(self, process: Process, until: float) -> None:
        self._scheduler.at(until, self._scheduler.wake, process.rank)
        is_forever = math.isinf(until)
        while self._scheduler.now < until:
            self.wait(process, lambda: "is stopped" if is_forever else f"sleeps until {until:g} s", forever=is_forever)
            if is_forever:
                return

    def wait(self, process: Process, doing: Callable[[], str], *, forever: bool = False) -> None:
        """Let others run.

        Raises:
            SystemExit: the rank has died meanwhile, or the run is over.

        """
        self._scheduler.wait(process.rank, doing, forever=forever)
        if process.has_ended:
            raise SystemExit

    def end(self, process: Process, fault: Fault | None = None) -> None:
        """End a rank: its engine, too."""
        if process.has_ended:
            return
        process.has_ended, process.ended_by = True, fault
        for end in process.ends:
            self._wire.leave(end)
            end.is_closed = True
        self._scheduler.wake(process.rank)

    @property
    def parts(self) -> tuple[Scheduler, Wire, Store]:
        return self._scheduler, self._wire, self._store


class FakeChannel(Channel):
    """A rank's channel of a fake network."""

    def __init__(self, network: FakeNetwork, end: End) -> None:
        """Stand at an end of the network's wire."""
        self.rank, self.size = end.rank, len(end.session.ends)
        self.limits = network.limits
        self._network, self._end = network, end
        self._scheduler, self._wire, self._store = network.parts

    def send(self, peer: int, tag: int, buffer: HostArray) -> Transfer:
        self._enter("send", peer, tag, buffer)
        transfer = Transfer(peer, tag, is_send=True, buffer=buffer)
        self._wire.send(self._stream(self.rank, peer, tag), transfer)
        return transfer

    def receive(self, peer: int, tag: int, buffer: HostArray) -> Transfer:
        self._enter("receive", peer, tag, buffer)
        if not buffer.flags.writeable:
            self._refuse("receives into a read-only buffer.")
        transfer = Transfer(peer, tag, is_send=False, buffer=buffer)
        self._wire.receive(self._stream(peer, self.rank, tag), transfer)
        return transfer

    def wait(self, deadline: float) -> Transfer | None:
        self._begin("wait")
        if math.isnan(deadline):
            self._refuse("waits until nan.")
        done = self._end.done
        if not done and self._scheduler.now < deadline:
            self._wait(lambda: bool(done), deadline, self._waits)
        return done.popleft() if done else None

    def flush(self, deadline: float) -> None:
        self._begin("flush")
        end = self._end
        # Words are out at once, and what was sent before them is lost.
        self._wait(lambda: end.has_said or self._wire.is_out(end), deadline, lambda: "waits until all is sent")

    def now(self) -> float:
        self._network.enter(self._end.process, "now")
        return self._scheduler.now

    def read_words(self, deadline: float) -> Mapping[int, bytes] | None:
        self._begin("words")
        answers: list[Mapping[int, bytes]] = []
        self._store.look(self._end, answers)
        self._wait(lambda: bool(answers), deadline, lambda: "reads the words of others")
        return answers[0] if answers else None

    def stop(self, word: bytes, deadline: float) -> None:
        self._begin(f"stop {word!r}")
        end, written = self._end, list[None]()
        if end.has_said:
            self._refuse("calls stop twice.")
        end.has_said = True
        self._store.say(end, word, written)
        self._wait(lambda: bool(written), deadline, lambda: "leaves a word")
        self._wire.leave(end)

    def without(self, ranks: Collection[int], deadline: float) -> FakeChannel:
        self._network.enter(self._end.process, f"without {sorted(ranks)}")  # after ``close`` as well
        survivors = tuple(rank for rank in range(self.size) if rank not in ranks)
        if self.rank not in survivors:
            self._refuse("leaves itself out.")
        end = self._end
        self._store.decide(end, survivors)
        self._wait(
            lambda: end.verdict is not None and (end.verdict.members != survivors or end.all_came),
            deadline,
            lambda: f"waits for {list(survivors)} to go on",
        )
        decision = end.verdict
        if decision is None:
            raise ConnectError.store("it has not answered by the deadline")
        if decision.members != survivors:
            raise GroupError.decided_otherwise(self.rank, decision.members, survivors)
        onward = FakeChannel(self._network, decision.successors[survivors.index(self.rank)])
        if not end.all_came:
            onward.close()
            raise ConnectError("Some ranks did not come.").blaming(*(r for r in survivors if r not in decision.came))
        return onward

    def close(self) -> None:
        self._network.enter(self._end.process, "close")
        end = self._end
        if end.is_closed:
            return
        if not end.has_said:
            held = [transfer for transfer, stream in end.pending.items() if _is_held(transfer, stream)]
            if held:
                self._refuse(f"closes its channel while these are under way: {_describe(held)}.")
        self._wire.leave(end)
        end.is_closed = True

    def _enter(self, call: str, peer: int, tag: int, buffer: HostArray) -> None:
        self._begin(f"{call} {peer} {tag} {len(buffer)}")
        tags, most = self.limits.tags, self.limits.message_bytes
        if not 0 <= peer < self.size or peer == self.rank:
            self._refuse(f"calls {call} with peer {peer}: others are 0 to {self.size - 1} without itself.")
        if not 0 <= tag < tags:
            self._refuse(f"calls {call} with tag {tag}: they count from 0 to {tags - 1}.")
        if buffer.ndim != 1 or buffer.itemsize != 1 or not buffer.flags.c_contiguous:
            self._refuse(f"calls {call} with {buffer.dtype} {buffer.shape}: a buffer is a row of bytes.")
        if len(buffer) > most:
            self._refuse(f"calls {call} with {len(buffer)} bytes: {most} at most.")
        if self._end.has_said:
            self._refuse(f"calls {call} after stop: nothing can be sent any more.")

    def _begin(self, call: str) -> None:
        self._network.enter(self._end.process, call)
        if self._end.is_closed:
            self._refuse(f"uses its channel after close: {call}.")

    def _refuse(self, what: str) -> NoReturn:
        error = ChannelUseError.rank_did(self._end.process.rank, what)
        self._scheduler.fail(error)  # the code under test may catch it
        raise error

    def _wait(self, is_over: Callable[[], bool], deadline: float, doing: Callable[[], str]) -> None:
        self._scheduler.at(deadline, self._wire.wake, self._end)
        while not is_over() and self._scheduler.now < deadline:
            self._network.wait(self._end.process, doing)

    def _waits(self) -> str:
        return f"waits for {_describe(self._end.pending) or 'nothing'}"

    def _stream(self, sender: int, receiver: int, tag: int) -> Stream:
        session = self._end.session
        stream = session.streams.get((sender, receiver, tag))
        if stream is None:
            stream = Stream(session.ends[sender], session.ends[receiver], tag)
            session.streams[sender, receiver, tag] = stream
        return stream


def _is_held(transfer: Transfer, stream: Stream) -> bool:
    """Whether the engine needs the buffer still."""
    return not transfer.is_send or (transfer.handle in stream.sends and transfer.handle not in stream.messages)


def _describe(transfers: Collection[Transfer]) -> str:
    return ", ".join(
        f"{'a send to' if transfer.is_send else 'a message from'} rank {transfer.peer} with tag {transfer.tag}"
        for transfer in transfers
    )
