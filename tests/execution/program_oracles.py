"""An oracle for programs, and what breaks them.

The oracle shares nothing with the proof: each rank walks its own program on its own memory, and what one host holds is
out of the others' reach.
"""

import dataclasses

from treefold.devices import rank_of
from treefold.execution.program import Perform, Program, Receive, Send, Share
from treefold.plan.ir import Combine, Copy, Range, Role

ALWAYS_REFUSED = ("drop", "repeat", "renumber", "change_peer", "change_pack", "cut_program", "resize", "change_kind")


class WrongError(Exception):
    """The cluster has seen something that must not happen."""


class Cluster:
    """Ranks that walk their programs, where replica r brings 2**r times an element's number."""

    #: In which order what is sent, done and received may happen within a step.
    ORDERS = ("sdr", "srd", "dsr")

    def __init__(self, movement, hosts):
        """Note which rank holds what."""
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
            key = rank, part.peer, part.number, part.pack
            if key in mail or self.host_of.get(part.peer) in {None, self.host_of[rank]}:
                raise WrongError
            mail[key] = self._read(part.source, rank, cells, is_sent=True)
        elif isinstance(part, Receive):
            self._write(part.target, rank, cells, mail.pop((part.peer, rank, part.number, part.pack), ()))
        else:
            columns = [self._read(source, rank, cells, is_shared=isinstance(part, Share))
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


class Mutator:
    """Breaks one thing in the programs of a group; which one is drawn by ``rng``."""

    KINDS = (
        "drop", "repeat", "repeat_elsewhere", "give_away", "delay", "swap_steps", "swap_parts", "renumber",
        "swap_numbers", "change_peer", "change_pack", "shift", "resize", "change_buffer", "change_kind", "drop_source",
        "reorder_sources", "flip_final", "cut_program",
    )  # fmt: skip

    def __init__(self, rng, buffers):
        """Remember what can be drawn."""
        self.rng, self.buffers = rng, buffers

    def mutant(self, programs):
        """Return a kind of mutation and the programs so changed; a quarter breaks once more."""
        kind = self.rng.choice(self.KINDS)
        changed = [[list(parts) for parts in program.steps] for program in programs]
        getattr(self, f"_{kind}")(changed)
        if kind not in ALWAYS_REFUSED and self.rng.random() < 0.25:
            getattr(self, f"_{self.rng.choice(self.KINDS)}")(changed)
        return kind, [Program(rank, tuple(map(tuple, steps))) for rank, steps in enumerate(changed)]

    def _pick(self, programs, *kinds):
        found = [(parts, index) for steps in programs for parts in steps for index, part in enumerate(parts)
                 if not kinds or isinstance(part, kinds)]  # fmt: skip
        return self.rng.choice(found) if found else ([None], 0)

    def _any_step(self, programs):
        return self.rng.choice(self.rng.choice(programs))

    def _drop(self, programs):
        parts, index = self._pick(programs)
        del parts[index]

    def _repeat(self, programs):
        parts, index = self._pick(programs)
        parts.append(parts[index])

    def _repeat_elsewhere(self, programs):
        parts, index = self._pick(programs)
        self._any_step(programs).append(parts[index])

    def _give_away(self, programs):
        """To another rank, in the same step."""
        parts, index = self._pick(programs)
        step = next(number for steps in programs for number, own in enumerate(steps) if own is parts)
        self.rng.choice(programs)[step].append(parts.pop(index))

    def _delay(self, programs):
        """To another step of the same rank."""
        parts, index = self._pick(programs)
        mine = next(steps for steps in programs if any(own is parts for own in steps))
        self.rng.choice(mine).append(parts.pop(index))

    def _swap_steps(self, programs):
        mine = self.rng.choice(programs)
        one, two = self.rng.randrange(len(mine)), self.rng.randrange(len(mine))
        mine[one], mine[two] = mine[two], mine[one]

    def _swap_parts(self, programs):
        (one, index), (two, place) = self._pick(programs), self._pick(programs)
        one[index], two[place] = two[place], one[index]

    def _replace(self, programs, name, draw, *kinds):
        parts, index = self._pick(programs, *kinds)
        if parts[index] is not None:
            parts[index] = dataclasses.replace(parts[index], **{name: draw(getattr(parts[index], name))})

    def _renumber(self, programs):
        self._replace(programs, "number", lambda number: number + self.rng.choice((-1, 1, 7)), Send, Receive)

    def _swap_numbers(self, programs):
        kind = self.rng.choice((Send, Receive))
        (one, index), (two, place) = self._pick(programs, kind), self._pick(programs, kind)
        if one[index] is not None:
            numbers = one[index].number, two[place].number
            one[index] = dataclasses.replace(one[index], number=numbers[1])
            two[place] = dataclasses.replace(two[place], number=numbers[0])

    def _change_peer(self, programs):
        self._replace(programs, "peer", lambda _: self.rng.randrange(-1, len(programs) + 1), Send, Receive)

    def _change_pack(self, programs):
        self._replace(programs, "pack", lambda pack: pack + self.rng.choice((-1, 1)), Send, Receive)

    def _change_kind(self, programs):
        parts, index = self._pick(programs, Perform, Share)
        if parts[index] is not None and isinstance(parts[index].action, Copy):
            parts[index] = (Share if isinstance(parts[index], Perform) else Perform)(parts[index].action)

    def _cut_program(self, programs):
        self.rng.choice(programs).pop()

    def _change_range(self, programs, change):
        parts, index = self._pick(programs)
        part = parts[index]
        if isinstance(part, Send):
            parts[index] = dataclasses.replace(part, source=change(part.source))
        elif isinstance(part, Receive):
            parts[index] = dataclasses.replace(part, target=change(part.target))
        else:
            parts[index] = dataclasses.replace(part, action=self._with_range(part.action, change))

    def _with_range(self, action, change):
        if self.rng.random() < 0.5:
            return dataclasses.replace(action, target=change(action.target))
        if isinstance(action, Copy):
            return dataclasses.replace(action, source=change(action.source))
        place = self.rng.randrange(len(action.sources))
        sources = [change(s) if at == place else s for at, s in enumerate(action.sources)]
        return dataclasses.replace(action, sources=tuple(sources))

    def _shift(self, programs):
        by = self.rng.choice((-1, 1))
        self._change_range(programs, lambda r: Range(r.buffer, r.start + by, r.stop + by))

    def _resize(self, programs):
        start, stop = self.rng.choice(((0, -1), (0, 1), (1, 0), (-1, 0)))
        self._change_range(programs, lambda r: Range(r.buffer, r.start + start, r.stop + stop))

    def _change_buffer(self, programs):
        chosen = self.rng.randrange(-1, len(self.buffers) + 1)
        self._change_range(programs, lambda r: Range(chosen, r.start, r.stop))

    def _change_sources(self, programs, change):
        parts, index = self._pick(programs, Perform)
        if parts[index] is not None and not isinstance(parts[index].action, Copy):
            sources = list(parts[index].action.sources)
            change(sources)
            parts[index] = Perform(dataclasses.replace(parts[index].action, sources=tuple(sources)))

    def _drop_source(self, programs):
        self._change_sources(programs, lambda sources: sources.pop(self.rng.randrange(len(sources))))

    def _reorder_sources(self, programs):
        self._change_sources(programs, self.rng.shuffle)

    def _flip_final(self, programs):
        parts, index = self._pick(programs, Perform)
        if parts[index] is not None and not isinstance(parts[index].action, Copy):
            action = parts[index].action
            parts[index] = Perform(dataclasses.replace(action, final=not action.final))
