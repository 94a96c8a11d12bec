import itertools
from collections import Counter
from fractions import Fraction

import pytest

from treefold.errors import PlanError
from treefold.plan.ir import Combine, Goal, Leaf, Role
from treefold.planners import LeafWork
from treefold.planners.direct import direct, lanes

PLACEMENTS = (
    ((0,),),
    ((0, 1, 2),),
    ((0,), (1,), (2,)),
    ((0, 1), (2, 3)),
    ((0, 2), (1, 3)),
    ((0, 1, 2), (3,), (4, 5)),
    ((0, 3, 5), (1, 4), (2,)),
)
DTYPES, LENGTHS = ("float32", "int32", "float32", "float32"), (7, 5, 0, 2)
LEAVES = tuple(zip(DTYPES, LENGTHS, strict=True))


def replicas_of(hosts):
    """Return 1, 2, 3, 1 … replicas, by rank."""
    return [1 + rank % 3 for rank in range(sum(map(len, hosts)))]


def work_of(replicas, leaves=LEAVES):
    """Return the work of ranks with this many replicas, for leaves of several dtypes and lengths."""
    sources = tuple(f"{rank}/cpu:{index}" for rank, count in enumerate(replicas) for index in range(count))
    ends = tuple(f"{rank}/cpu:0" for rank in range(len(replicas)))
    return [LeafWork(Leaf(dtype, Goal.FOLD), (length,) * len(sources), sources, ends) for dtype, length in leaves]


def crossings(movement, hosts):
    """Return how many elements, of one byte, every host sends to every other."""
    host_of = {rank: host for host, ranks in enumerate(hosts) for rank in ranks}
    found = Counter()
    for hop in movement.hops:
        ends = tuple(host_of[int(device.partition("/")[0])] for device in (hop.source, hop.target))
        if ends[0] != ends[1]:
            found[ends] += hop.nbytes
    return found


def results(movement):
    """Walk the steps, where replica r brings 2**r times an element's number, from 1; return the outputs by leaf."""
    cells = [[0] * buffer.length for buffer in movement.buffers]
    for index, buffer in enumerate(movement.buffers):
        if buffer.role is Role.INPUT:
            cells[index] = [2**buffer.position * element for element in range(1, buffer.length + 1)]
    for step in movement.steps:
        for action in step.actions:
            parts = [cells[source.buffer][source.start : source.stop] for source in action.sources]
            if isinstance(action, Combine):
                assert {movement.buffers[source.buffer].device for source in action.sources} == {
                    movement.buffers[action.target.buffer].device
                }
                parts = [[sum(column) for column in zip(*parts, strict=True)]]
            cells[action.target.buffer][action.target.start : action.target.stop] = itertools.chain(*parts)
    found = [[] for _ in movement.leaves]
    for index, buffer in enumerate(movement.buffers):
        if buffer.role is Role.OUTPUT:
            found[buffer.leaf].append(cells[index])
    return found


class TestDirect:
    @pytest.mark.parametrize("is_folded", [False, True])
    @pytest.mark.parametrize("hosts", PLACEMENTS)
    def test_gives_every_rank_every_contribution(self, hosts, is_folded):
        """In blocks, round robin and on unequal hosts; several dtypes, an empty leaf, unequal numbers of replicas."""
        movement = direct(hosts, is_folded_per_host=is_folded).movement(work_of(replicas_of(hosts)))
        everything = 2 ** sum(replicas_of(hosts)) - 1
        expected = [[everything * element for element in range(1, length + 1)] for length in LENGTHS]
        assert results(movement) == [[values] * sum(map(len, hosts)) for values in expected]

    @pytest.mark.parametrize("hosts", PLACEMENTS)
    def test_folds_in_replica_order_unless_hosts_fold_first(self, hosts):
        """Raw contributions meet at the owner: the bits of one pass."""
        replicas = replicas_of(hosts)
        assert direct(hosts).movement(work_of(replicas)).proof.is_flat
        folded = direct(hosts, is_folded_per_host=True).movement(work_of(replicas))
        assert folded.proof.is_flat == (len(hosts) == 1 or len(replicas) == len(hosts) == sum(replicas))

    @pytest.mark.parametrize("hosts", [((0, 1), (2, 3), (4, 5)), ((0, 3), (1, 4), (2, 5))])
    def test_sends_every_slice_once_per_contribution_and_back_once(self, hosts):
        """With R replicas per host, a host sends R of others' slices and its own to each; with partial folds, one."""
        for replicas, is_folded, up in (([1] * 6, False, 2), ([2] * 6, False, 4), ([2] * 6, True, 1)):
            method = direct(hosts, is_folded_per_host=is_folded)
            sent = crossings(method.movement(work_of(replicas, [("int8", 60)])), hosts)
            # Each host owns 20 elements. Partial folds count in the dtype of the leaf.
            assert sent == dict.fromkeys(itertools.permutations(range(3), 2), 20 * up + 20)

    def test_owners_have_their_hosts_shares(self):
        method = direct(((0, 2), (1,), (3,)), [0.5, Fraction(1, 4), 0])
        assert method.shares == (Fraction(1, 4), Fraction(1, 4), Fraction(1, 4), 0)
        movement = method.movement(work_of([1] * 4, [("int8", 30)]))
        ends = {a.target.buffer for step in movement.steps for a in step.actions if hasattr(a, "final")}
        assert {movement.buffers[index].device for index in ends} == {"0/cpu:0", "1/cpu:0", "2/cpu:0"}

    def test_leaves_slices_out_that_have_no_elements(self):
        movement = direct(((0, 1), (2, 3), (4,))).movement(work_of([1] * 5, [("float32", 2)]))
        assert movement.num_packs == 2
        assert all(step.actions for step in movement.steps)

    @pytest.mark.parametrize("is_folded", [False, True])
    def test_takes_the_devices_of_a_machine(self, is_folded):
        devices = tuple(f"gpu:{number}" for number in range(4))
        sources, ends = (*devices, "gpu:0"), (*devices[::-1], "gpu:3")
        work = [LeafWork(Leaf("int8", Goal.FOLD), (8,) * 5, sources, ends)]
        hosts = ((0, 2), (1, 3))
        movement = direct(hosts, devices=devices, is_folded_per_host=is_folded).movement(work)
        assert results(movement) == [[[31 * element for element in range(1, 9)]] * 5]
        crossing = {hop.source + hop.target for hop in movement.hops}.intersection({"gpu:0gpu:3", "gpu:1gpu:2"})
        assert crossing == ({*()} if is_folded else {"gpu:0gpu:3", "gpu:1gpu:2"})

    def test_sends_results_only_where_they_are_wanted(self):
        """To one rank: each owner sends its slice there, over the rank at its place on that host."""
        hosts = ((0, 1), (2, 3), (4,))
        work = work_of([1] * 5, [("int8", 30)])
        movement = direct(hosts).movement([LeafWork(work[0].leaf, work[0].lengths, work[0].sources, ("2/cpu:0",))])
        assert results(movement) == [[[31 * element for element in range(1, 31)]]]
        down = {(hop.source, hop.target) for hop in movement.hops if hop.step > 2}
        assert down == {(f"{a}/cpu:0", f"{b}/cpu:0") for a, b in [(0, 2), (1, 3), (4, 2), (3, 2)]}

    @pytest.mark.parametrize(
        ("hosts", "shares", "sentence"),
        [
            (
                ((0, 1), (1, 2)),
                None,
                r"^2 hosts have the ranks \[0, 1, 1, 2\]\. Every host has some, and every rank from",
            ),
            (
                ((1,), (2,)),
                None,
                r"^2 hosts have the ranks \[1, 2\]\. Every host has some, and every rank from 0 on is",
            ),
            ((), None, r"^0 hosts have the ranks \[\]\. Every host has some, and every rank from 0 on is on one\.$"),
            (((0,), ()), None, r"^2 hosts have the ranks \[0\]\. Every host has some, and every rank from 0 on is on"),
            (((0,), (1,)), [1], r"^The shares of 2 hosts are 1\. Each host needs one that is not negative, not all"),
            (((0,), (1,)), [], r"^The shares of 2 hosts are none\. Each host needs one that is not negative, not all"),
            (((0,), (1,)), [2, -1], r"^The shares of 2 hosts are 2, -1\. Each host needs one that is not negative"),
            (((0,), (1,)), [0, 0], r"^The shares of 2 hosts are 0, 0\. Each host needs one that is not negative"),
        ],
    )
    def test_refuses_hosts_and_shares_that_cannot_be(self, hosts, shares, sentence):
        with pytest.raises(PlanError, match=sentence):
            direct(hosts, shares)

    def test_refuses_work_of_other_ranks(self):
        with pytest.raises(PlanError, match=r"^A result is to go to 2/cpu:0, and ranks have theirs on 0/cpu:0, 1/cpu"):
            direct(((0,), (1,))).movement(work_of([1, 1, 1]))
        work = [LeafWork(Leaf("int8", Goal.FOLD), (8, 8), ("0/cpu:0", "2/cpu:1"), ("0/cpu:0", "1/cpu:0"))]
        with pytest.raises(PlanError, match=r"^2/cpu:1 is on none of the 2 ranks\. Name it by its rank, as 0/cpu:0\.$"):
            direct(((0,), (1,))).movement(work)


class TestLanes:
    @pytest.mark.parametrize("hosts", PLACEMENTS)
    def test_are_the_rank_itself_on_its_own_host(self, hosts):
        for host, ranks in enumerate(hosts):
            for rank in ranks:
                assert lanes(hosts, rank)[host] == rank
                assert all(lane in others for lane, others in zip(lanes(hosts, rank), hosts, strict=True))

    def test_spread_over_all_ranks_of_equal_hosts(self):
        hosts = ((0, 3, 6), (1, 4, 7), (2, 5, 8))
        assert Counter(lane for rank in range(9) for lane in lanes(hosts, rank)) == dict.fromkeys(range(9), 3)
