"""Programs are parts of a movement that lack nothing: put together they are it, and ranks that walk them get sums."""

import dataclasses
from collections import Counter

import pytest
from program_oracles import Cluster

from treefold.errors import PlanError
from treefold.execution.program import Perform, Program, Receive, Send, Take, program_of
from treefold.plan import Movement
from treefold.plan.ir import Buffer, Combine, Copy, Goal, Leaf, Range, Role, Step
from treefold.planners import LeafWork, PlanBuilder, add_broadcast, add_concat
from treefold.planners.direct import direct
from treefold.planners.method import one_array
from treefold.topology import known_topology
from treefold.topology.planning.registry import METHODS, MachineMethods


def blocks(ranks, per_host):
    """Return hosts of this many ranks each, with fewer on the last."""
    return tuple(tuple(range(ranks)[first : first + per_host]) for first in range(0, ranks, per_host))


def round_robin(ranks, hosts):
    """Return this many hosts, with the ranks dealt to them in turn."""
    return tuple(tuple(range(ranks)[host::hosts]) for host in range(min(hosts, ranks)))


def work_of(replicas, lengths=(7, 5, 1), goal=Goal.FOLD):
    sources = tuple(f"{rank}/cpu:{index}" for rank, count in enumerate(replicas) for index in range(count))
    ends = tuple(f"{rank}/cpu:0" for rank in range(len(replicas)))
    return [LeafWork(Leaf("int64", goal), (length,) * len(sources), sources, ends) for length in lengths]


def programs_of(movement, hosts):
    return [program_of(movement, rank, hosts) for rank in range(sum(map(len, hosts)))]


def on_ranks(movement):
    """Return a movement of a machine on which device i is that of rank i."""
    rank = {device: number for number, device in enumerate(movement.devices)}
    buffers = tuple(dataclasses.replace(b, device=f"{rank[b.device]}/cpu:0") for b in movement.buffers)
    return Movement(leaves=movement.leaves, buffers=buffers, steps=movement.steps)


def same_steps(movement, hosts):
    """Tell whether the programs of all ranks, put together, are the movement: each action once, in any order."""
    programs = programs_of(movement, hosts)
    return all(
        Counter(put_together([program.steps[number] for program in programs])) == Counter(step.actions)
        for number, step in enumerate(movement.steps)
    )


def put_together(parts_of_ranks):
    """Return the actions of a step, of which each copy between hosts is a pair of parts with one number."""
    parts = [(rank, part) for rank, parts in enumerate(parts_of_ranks) for part in parts]
    sent = {(rank, part.peer, part.number): part for rank, part in parts if isinstance(part, Send)}
    actions = [part.action for _, part in parts if isinstance(part, Perform | Take)]
    for rank, part in parts:
        if isinstance(part, Receive):
            assert sent.pop((part.peer, rank, part.number)).action == part.action
            actions.append(part.action)
    assert not sent
    return actions


class TestProgramOf:
    @pytest.mark.parametrize("is_folded", [False, True])
    @pytest.mark.parametrize("ranks", range(1, 17))
    def test_divides_direct_plans(self, ranks, is_folded):
        for hosts in {*(blocks(ranks, n) for n in (1, 2, 3, ranks)), *(round_robin(ranks, n) for n in (2, 3, 5))}:
            replicas = [1 + rank % 2 for rank in range(ranks)]
            movement = direct(hosts, is_folded_per_host=is_folded).movement(work_of(replicas))
            assert same_steps(movement, hosts)
            assert Cluster(movement, hosts).is_right(programs_of(movement, hosts))

    @pytest.mark.parametrize("machine", ["ring:2", "mesh:3", "line:4", "ring:5", "mesh:8", "2x8_h100"])
    @pytest.mark.parametrize("name", METHODS)
    def test_divides_the_plans_of_every_method(self, machine, name):
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
        sent = [
            (movement.buffers[part.action.source.buffer].role is Role.INPUT, program.rank, part.peer)
            for program in programs_of(movement, hosts)
            for parts in program.steps
            for part in parts
            if isinstance(part, Send)
        ]
        raw, made = ([pair for is_input, *pair in sent if is_input is wanted] for wanted in (True, False))
        assert sorted(raw) == [[0, 2], [0, 3], [1, 2], [1, 3], [2, 0], [2, 1], [3, 0], [3, 1]]
        assert sorted(made) == [[0, 2], [1, 3], [2, 0], [3, 1]]

    def test_numbers_copies_between_hosts_in_the_order_of_the_plan(self):
        hosts = ((0, 1), (2,))
        movement = direct(hosts).movement(work_of([1, 2, 1]))
        sent = {part.number: (part.action.source, step) for program in programs_of(movement, hosts)
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
        movement = direct(((0, 1, 2),)).movement(work_of([1, 1, 1]))
        parts = [part for program in programs_of(movement, ((0, 1, 2),)) for own in program.steps for part in own]
        assert {type(part) for part in parts} == {Perform, Take}

    def test_refuses_devices_without_ranks(self):
        movement = direct(((0, 1),), devices=("cpu:0", "cpu:1")).movement(one_array(("cpu:0", "cpu:1")))
        with pytest.raises(PlanError, match=r"^cpu:0 is on none of the 2 ranks\. Name it by its rank, as 0/cpu:0\.$"):
            program_of(movement, 0, ((0, 1),))
        with pytest.raises(PlanError, match=r"^1/cpu:0 is on none of the 1 ranks\."):
            program_of(on_ranks(movement), 0, ((0,),))

    def test_refuses_folds_across_ranks(self):
        buffers = (
            *(Buffer(f"in{rank}", f"{rank}/cpu:0", 1, Role.INPUT, 0, rank) for rank in range(2)),
            Buffer("out", "0/cpu:0", 1, Role.OUTPUT, 0, 0),
        )
        fold = Combine((Range(0, 0, 1), Range(1, 0, 1)), Range(2, 0, 1), -1, final=True)
        movement = Movement(leaves=(Leaf("int8", Goal.FOLD),), buffers=buffers, steps=(Step((fold,)),))
        with pytest.raises(PlanError, match=r"^Rank 0 is to fold or concatenate what other ranks hold: copy it to one"):
            program_of(movement, 0, ((0, 1),))


class TestCluster:
    def test_sees_a_part_that_is_missing(self):
        """``TestProgramOf`` relies on this: if one rank leaves anything out, the ranks do not all end with the sums."""
        hosts = ((0, 1), (2,))
        movement = direct(hosts).movement(work_of([1, 2, 1]))
        programs, cluster = programs_of(movement, hosts), Cluster(movement, hosts)
        for program in programs:
            for number, parts in enumerate(program.steps):
                for left_out in range(len(parts)):
                    steps = list(program.steps)
                    steps[number] = parts[:left_out] + parts[left_out + 1 :]
                    changed = list(programs)
                    changed[program.rank] = Program(program.rank, tuple(steps))
                    assert not cluster.is_right(changed)
