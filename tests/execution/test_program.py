"""Programs are put together again, and broken ones are refused: thousands of them, by a seed.

What would go wrong is decided by ``program_oracles``.
"""

import dataclasses
import os
import random
from collections import Counter

import pytest
from program_oracles import ALWAYS_REFUSED, Cluster, Mutator

from treefold.errors import PlanError
from treefold.execution.program import Perform, Program, Receive, Send, Share, program_of, put_together
from treefold.plan import Movement
from treefold.plan.ir import Buffer, Combine, Copy, Goal, Leaf, Range, Role, Step
from treefold.planners import LeafWork, PlanBuilder, add_broadcast, add_concat
from treefold.planners.direct import direct
from treefold.planners.method import one_array
from treefold.planners.registry import METHODS, MachineMethods
from treefold.topology import known_topology

CASES = os.environ.get("TREEFOLD_CASES", "20000")
MUTANTS = 100_000 if CASES == "full" else int(CASES) // 4
PLACEMENTS = (
    ((0,),),
    ((0, 1, 2),),
    ((0,), (1,), (2,)),
    ((0, 1), (2, 3)),
    ((0, 2), (1, 3)),
    ((0, 1, 2), (3,), (4, 5)),
    ((0, 3, 5), (1, 4), (2,)),
)


def blocks(ranks, per_host):
    """Return hosts of so many ranks, the last of fewer."""
    return tuple(tuple(range(ranks)[first : first + per_host]) for first in range(0, ranks, per_host))


def round_robin(ranks, hosts):
    """Return hosts whose ranks are every so manieth."""
    return tuple(tuple(range(ranks)[host::hosts]) for host in range(min(hosts, ranks)))


def work_of(replicas, lengths=(7, 5, 1), goal=Goal.FOLD):
    """Return the work of ranks with so many replicas."""
    sources = tuple(f"{rank}/cpu:{index}" for rank, count in enumerate(replicas) for index in range(count))
    ends = tuple(f"{rank}/cpu:0" for rank in range(len(replicas)))
    return [LeafWork(Leaf("int64", goal), (length,) * len(sources), sources, ends) for length in lengths]


def programs_of(movement, hosts):
    """Return the programs of all ranks."""
    return [program_of(movement, rank, hosts) for rank in range(sum(map(len, hosts)))]


def on_ranks(movement):
    """Return a movement of a machine whose device i is that of rank i."""
    rank = {device: number for number, device in enumerate(movement.devices)}
    buffers = tuple(dataclasses.replace(b, device=f"{rank[b.device]}/cpu:0") for b in movement.buffers)
    return Movement(leaves=movement.leaves, buffers=buffers, steps=movement.steps)


def proved(programs, movement, hosts):
    """Return the movement that programs make; raises PlanError where they make none."""
    steps = put_together(programs, movement.buffers, hosts)
    return Movement(leaves=movement.leaves, buffers=movement.buffers, steps=steps)


def same_steps(movement, hosts):
    """Tell whether a movement that is divided and put together has the steps it had, each in any order."""
    steps = put_together(programs_of(movement, hosts), movement.buffers, hosts)
    return [Counter(step.actions) for step in steps] == [Counter(step.actions) for step in movement.steps]


class TestProgramOf:
    @pytest.mark.parametrize("is_folded", [False, True])
    @pytest.mark.parametrize("ranks", range(1, 17))
    def test_divides_direct_plans(self, ranks, is_folded):
        """In blocks, round robin and on unequal hosts: put together, the programs are the movement."""
        for hosts in {*(blocks(ranks, n) for n in (1, 2, 3, ranks)), *(round_robin(ranks, n) for n in (2, 3, 5))}:
            replicas = [1 + rank % 2 for rank in range(ranks)]
            movement = direct(hosts, is_folded_per_host=is_folded).movement(work_of(replicas))
            assert same_steps(movement, hosts)
            assert Cluster(movement, hosts).is_right(programs_of(movement, hosts))

    @pytest.mark.parametrize("machine", ["ring:2", "mesh:3", "line:4", "ring:5", "mesh:8", "2x8_h100"])
    @pytest.mark.parametrize("name", METHODS)
    def test_divides_the_plans_of_every_method(self, machine, name):
        """One device of the machine is one of a rank; hosts are blocks, round robin or single ranks."""
        if name in {"tree", "trees", "shallow"}:
            pytest.importorskip("scipy", reason="trees are packed by linear programs")
        topology = known_topology(machine)
        movement = on_ranks(MachineMethods(topology)[name].movement(one_array(topology.devices, 48)))
        ranks = len(topology.devices)
        for hosts in {
            blocks(ranks, 1),
            blocks(ranks, 2),
            blocks(ranks, 3),
            round_robin(ranks, 2),
            blocks(ranks, ranks),
        }:
            assert same_steps(movement, hosts)
            assert Cluster(movement, hosts).is_right(programs_of(movement, hosts))

    @pytest.mark.parametrize("goal", [Goal.COPY, Goal.GATHER, Goal.ROWS])
    def test_divides_plans_that_only_move(self, goal):
        """A broadcast and a gather between unequal hosts."""
        work = work_of([1, 2, 1, 1], [4], goal)
        if goal is Goal.COPY:
            work = [dataclasses.replace(work[0], lengths=(4,), sources=work[0].sources[:1])]
        builder = PlanBuilder(work)
        if goal is Goal.COPY:
            add_broadcast(builder, 0)
        else:
            add_concat(builder, 0, "2/cpu:0")
        assert same_steps(builder.movement(), ((0, 1), (2,), (3,)))

    def test_lets_all_ranks_of_a_host_send_its_contributions(self):
        """A contribution is sent by the rank that brings it, a result by its owner: once to each other host."""
        hosts = ((0, 1), (2, 3))
        movement = direct(hosts).movement(work_of([1, 1, 1, 1], [8]))
        sent = [(part, program.rank) for program in programs_of(movement, hosts)
                for parts in program.steps for part in parts if isinstance(part, Send)]  # fmt: skip
        raw = [(rank, part.peer) for part, rank in sent if movement.buffers[part.source.buffer].role is Role.INPUT]
        assert sorted(raw) == [(0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (2, 1), (3, 0), (3, 1)]
        made = [(rank, part.peer) for part, rank in sent if movement.buffers[part.source.buffer].role is not Role.INPUT]
        assert sorted(made) == [(0, 2), (1, 3), (2, 0), (3, 1)]

    def test_numbers_copies_between_hosts_in_the_order_of_the_plan(self):
        """From 0, by step and action; what stays on a host has no number."""
        hosts = ((0, 1), (2,))
        movement = direct(hosts).movement(work_of([1, 2, 1]))
        sent = {part.number: (part.source, step) for program in programs_of(movement, hosts)
                for step, parts in enumerate(program.steps) for part in parts if isinstance(part, Send)}  # fmt: skip
        host_of = {"0/cpu:0": 0, "1/cpu:0": 0, "1/cpu:1": 0, "2/cpu:0": 1}
        crossing = [
            (action.source, number) for number, step in enumerate(movement.steps) for action in step.actions
            if isinstance(action, Copy) and len({host_of[movement.buffers[part.buffer].device]
                                                 for part in (action.source, action.target)}) > 1
        ]  # fmt: skip
        assert [sent[number] for number in sorted(sent)] == crossing
        assert sorted(sent) == list(range(len(crossing)))

    @pytest.mark.parametrize("hosts", [((0,), (1,), (2,), (3,)), ((0, 4), (1, 5), (2, 6), (3, 7))])
    def test_rotates(self, hosts):
        """Of every step's first sends no two go to one host; ranks hear from the host before theirs first."""
        ranks = sum(map(len, hosts))
        movement = direct(hosts).movement(work_of([1] * ranks, [64]))
        host_of = {rank: host for host, own in enumerate(hosts) for rank in own}
        for program in programs_of(movement, hosts):
            for parts in program.steps:
                for kind, turns in ((Send, [1, 2, 3]), (Receive, [3, 2, 1])):
                    peers = [host_of[part.peer] for part in parts if isinstance(part, kind)]
                    assert list(dict.fromkeys((peer - host_of[program.rank]) % 4 for peer in peers)) in ([], turns)

    def test_shares_within_a_host(self):
        """Nothing is sent on one host: ranks read what others hold."""
        movement = direct(((0, 1, 2),)).movement(work_of([1, 1, 1]))
        parts = [part for program in programs_of(movement, ((0, 1, 2),)) for own in program.steps for part in own]
        assert {type(part) for part in parts} == {Perform, Share}

    def test_refuses_devices_without_ranks(self):
        """Or of other ranks."""
        movement = direct(((0, 1),), devices=("cpu:0", "cpu:1")).movement(one_array(("cpu:0", "cpu:1")))
        with pytest.raises(PlanError, match=r"^cpu:0 is on none of the 2 ranks\. Name it by its rank, as 0/cpu:0\.$"):
            program_of(movement, 0, ((0, 1),))
        with pytest.raises(PlanError, match=r"^1/cpu:0 is on none of the 1 ranks\."):
            program_of(on_ranks(movement), 0, ((0,),))

    def test_refuses_folds_across_ranks(self):
        """In such a plan one memory holds everything."""
        buffers = (
            *(Buffer(f"in{rank}", f"{rank}/cpu:0", 1, Role.INPUT, 0, rank) for rank in range(2)),
            Buffer("out", "0/cpu:0", 1, Role.OUTPUT, 0, 0),
        )
        fold = Combine((Range(0, 0, 1), Range(1, 0, 1)), Range(2, 0, 1), -1, final=True)
        movement = Movement(leaves=(Leaf("int8", Goal.FOLD),), buffers=buffers, steps=(Step((fold,)),))
        with pytest.raises(PlanError, match=r"^Rank 0 is to fold or concatenate what other ranks hold: copy it to one"):
            program_of(movement, 0, ((0, 1),))


class TestPutTogether:
    @pytest.mark.parametrize("is_folded", [False, True])
    @pytest.mark.parametrize("hosts", PLACEMENTS)
    def test_refuses_every_broken_program(self, hosts, is_folded):
        """Whatever is changed: it is refused, by this or by the proof, or the ranks still get the right numbers."""
        replicas = [1 + rank % 2 for rank in range(sum(map(len, hosts)))]
        movement = direct(hosts, is_folded_per_host=is_folded).movement(work_of(replicas))
        programs, cluster = programs_of(movement, hosts), Cluster(movement, hosts)
        mutator = Mutator(random.Random(len(movement.buffers)), movement.buffers)  # noqa: S311 - cases
        refused, wrong, allowed = Counter(), [], Counter()
        for _ in range(MUTANTS // (2 * len(PLACEMENTS))):
            kind, changed = mutator.mutant(programs)
            try:
                proved(changed, movement, hosts)
            except PlanError:
                refused[kind] += 1
            else:
                allowed[kind] += changed != programs
                wrong += [] if cluster.is_right(changed) else [(kind, changed)]
        assert wrong == []
        assert {kind: allowed[kind] for kind in ALWAYS_REFUSED if allowed[kind]} == {}
        assert refused.total() > 3 * allowed.total()

    @pytest.mark.parametrize(
        ("rank", "change", "sentence"),
        [
            (0, {"number": 9}, r"rank 1 finds no other end of Receive\(number=2, .*\)\.$"),
            (0, {"pack": 9}, r"rank 0 has Send\(.* pack=9\), for which rank 1 has Receive\(.* pack=1\)\.$"),
            (0, {"source": Range(0, 2, 5)}, r"rank 0 has Send\(.*stop=5.*\), for which rank 1 has Receive\(.*\)\.$"),
            (0, {"peer": 2}, r"rank 0 has Send\(.* peer=2, .*\), for which rank 1 has Receive\(.*\)\.$"),
            (0, {"peer": 0}, r"rank 0 cannot do Send\(.* peer=0, .*\)\.$"),
            (0, {"source": Range(1, 2, 3)}, r"rank 0 cannot do Send\(.*Range\(buffer=1, .*\)\.$"),
        ],
    )
    def test_says_what_does_not_fit(self, rank, change, sentence):
        """The step, the rank, its part, and that of the other."""
        hosts = ((0,), (1,), (2,))
        movement = direct(hosts).movement(work_of([1, 1, 1], [6]))
        programs = programs_of(movement, hosts)
        first, *steps = programs[rank].steps
        sent, *others = first
        assert isinstance(sent, Send)
        changed = (dataclasses.replace(sent, **change), *others)
        programs[rank] = Program(rank, (changed, *steps))
        with pytest.raises(PlanError, match=r"^The programs of the ranks do not fit together: in step 1, " + sentence):
            put_together(programs, movement.buffers, hosts)

    def test_needs_a_program_of_every_rank(self):
        """In order, all of one length."""
        hosts = ((0,), (1,))
        movement = direct(hosts).movement(work_of([1, 1], [6]))
        one, two = programs_of(movement, hosts)
        short = Program(1, two.steps[1:])
        for programs, ranks, lengths in (
            ([one], "0", "3"),
            ([two, one], "1, 0", "3, 3"),
            ([one, short], "0, 1", "3, 2"),
        ):
            sentence = rf"^There are programs of the ranks \[{ranks}\], with \[{lengths}\] steps\. Each of the 2 ranks "
            with pytest.raises(PlanError, match=sentence):
                put_together(programs, movement.buffers, hosts)

    def test_refuses_a_number_that_is_used_again(self):
        """In a later step, by the same two ranks."""
        hosts = ((0,), (1,))
        movement = direct(hosts).movement(work_of([1, 1], [6]))
        programs = programs_of(movement, hosts)
        number = {(program.rank, index, type(part)): part.number for program in programs
                  for index, parts in enumerate(program.steps) for part in parts
                  if isinstance(part, Send | Receive)}  # fmt: skip
        first, last = number[0, 0, Send], number[0, 2, Send]
        renumbered = [
            Program(p.rank, tuple(tuple(dataclasses.replace(part, number=first) if getattr(part, "number", -1) == last
                                        else part for part in parts) for parts in p.steps))
            for p in programs
        ]  # fmt: skip
        with pytest.raises(PlanError, match=r": in step 3, rank 0 does again Send\(number=1, "):
            put_together(renumbered, movement.buffers, hosts)

    def test_refuses_a_copy_that_another_rank_receives(self):
        """Both ends agree on it, and the buffer is not that rank's."""
        hosts = ((0,), (1, 2))
        movement = direct(hosts).movement(work_of([1, 1, 1], [6]))
        programs = programs_of(movement, hosts)
        (sent, *others), *later = programs[0].steps
        wrong = 3 - sent.peer
        programs[0] = Program(0, ((dataclasses.replace(sent, peer=wrong), *others), *later))
        receipts = [p for p in programs[sent.peer].steps[0] if isinstance(p, Receive) and p.number == sent.number]
        for rank in (1, 2):
            first, *rest = programs[rank].steps
            kept = tuple(part for part in first if part not in receipts)
            programs[rank] = Program(rank, ((*kept, *(receipts if rank == wrong else ())), *rest))
        with pytest.raises(PlanError, match=rf": in step 1, rank {wrong} cannot do Receive\(number={sent.number}, "):
            put_together(programs, movement.buffers, hosts)
