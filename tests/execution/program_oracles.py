"""An oracle for programs.

The oracle shares nothing with the proof: each rank walks its own program on its own memory, and what one host holds is
out of the others' reach.
"""

from treefold.devices import rank_of
from treefold.execution.program import Receive, Send, Take
from treefold.plan.ir import Combine, Role


class WrongError(Exception):
    """The cluster has seen something that must not happen."""


class Cluster:
    """Ranks that walk their programs, where replica r brings 2**r times an element's number."""

    #: In which order what is sent, done and received may happen within a step.
    ORDERS = ("sdr", "srd", "dsr")

    def __init__(self, movement, hosts):
        self.leaves, self.buffers = movement.leaves, movement.buffers
        self.host_of = {rank: host for host, ranks in enumerate(hosts) for rank in ranks}
        self.holders = [rank_of(buffer.device) for buffer in self.buffers]

    def is_right(self, programs):
        """Tell whether all ranks end with the sums, in whatever order the parts of a step are done."""
        try:
            runs = [self._run(programs, order, turn) for order in self.ORDERS for turn in (1, -1)]
        except WrongError:
            return False
        outputs = [index for index, buffer in enumerate(self.buffers) if buffer.role is Role.OUTPUT]
        return all(run[index] == self._expected(self.buffers[index]) for run in runs for index in outputs)

    def _expected(self, output):
        replicas = [b for b in self.buffers if b.role is Role.INPUT and b.leaf == output.leaf]
        return [(2 ** len(replicas) - 1) * element for element in range(1, output.length + 1)]

    def _run(self, programs, order, turn):
        cells = [[None] * buffer.length for buffer in self.buffers]
        for index, buffer in enumerate(self.buffers):
            if buffer.role is Role.INPUT:
                cells[index] = [2**buffer.position * element for element in range(1, buffer.length + 1)]
        if len({len(program.steps) for program in programs}) != 1:
            raise WrongError
        for number in range(len(programs[0].steps)):
            mail = {}
            parts = [(program.rank, part) for program in programs for part in program.steps[number]][::turn]
            for letter in order:
                for rank, part in parts:
                    if letter == {Send: "s", Receive: "r"}.get(type(part), "d"):
                        self._do(part, rank, cells, mail)
            if mail:
                raise WrongError
        return cells

    def _do(self, part, rank, cells, mail):
        if isinstance(part, Send):
            key = rank, part.peer, part.number, part.action.pack
            if key in mail or self.host_of.get(part.peer) in {None, self.host_of[rank]}:
                raise WrongError
            mail[key] = self._read(part.action.source, rank, cells, is_sent=True)
        elif isinstance(part, Receive):
            self._write(part.action.target, rank, cells, mail.pop((part.peer, rank, part.number, part.action.pack), ()))
        else:
            columns = [self._read(source, rank, cells, is_shared=isinstance(part, Take))
                       for source in part.action.sources]  # fmt: skip
            if isinstance(part.action, Combine):
                if len({len(column) for column in columns}) != 1:
                    raise WrongError
                columns = [[sum(row) for row in zip(*columns, strict=True)]]
            self._write(part.action.target, rank, cells, [value for column in columns for value in column])

    def _read(self, source, rank, cells, *, is_sent=False, is_shared=False):
        held = cells[source.buffer] if 0 <= source.buffer < len(cells) else []
        values = held[source.start : source.stop] if 0 <= source.start < source.stop <= len(held) else [None]
        if None in values:
            raise WrongError
        holder = self.holders[source.buffer]
        reaches = is_shared or (is_sent and self.buffers[source.buffer].role is Role.INPUT)
        if holder != rank and not (reaches and self.host_of[holder] == self.host_of[rank]):
            raise WrongError
        return values

    def _write(self, target, rank, cells, values):
        if not 0 <= target.buffer < len(cells) or not 0 <= target.start < target.stop <= len(cells[target.buffer]):
            raise WrongError
        if len(values) != target.length or self.holders[target.buffer] != rank:
            raise WrongError
        cells[target.buffer][target.start : target.stop] = values
