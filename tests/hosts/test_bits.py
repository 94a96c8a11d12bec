"""The bits of a group over hosts are those of one process. ``TREEFOLD_CASES=full`` makes 40 times as many calls."""

import itertools
import os
import re

import bit_cases
import fake_groups
import numpy as np
import pretended_hosts
import pytest
import torch
from torch_ranks import Raised, hosts, run

import treefold
from treefold.dtypes import numpy_dtype
from treefold.group import plans
from treefold.plan import from_json
from treefold.testing import mixed_values, owned

IS_FULL = os.environ.get("TREEFOLD_CASES") == "full"
CALLS = 320 if IS_FULL else 8
ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
#: More than a frame has room for, and no multiple of any number of ranks.
LENGTH = 5003


def finite(replica, dtype, length=LENGTH):
    values = mixed_values(replica, (length,), dtype, is_finite=True)
    return values if dtype == "float16" else np.clip(values, -1e9, 1e9).astype(dtype)


class TestGroup:
    @pytest.mark.parametrize("layout", pretended_hosts.LAYOUTS, ids=str)
    def test_gives_the_bits_of_one_process(self, layout):
        size, first = sum(map(len, layout)), pretended_hosts.LAYOUTS.index(layout) * 100_000
        seeds = range(first, first + CALLS)
        done = run(hosts.bits, size, layout, seeds, (256, 4096), backend="gloo", environment=ON_LOOPBACK)
        assert not (failures := [answer.text for answer in done if isinstance(answer, Raised)]), failures[0]
        assert [len(alike) for alike in done] == [CALLS] * size
        assert len(set(map(tuple, done))) == 1

    @pytest.mark.parametrize("size", range(2, 9) if IS_FULL else (2, 3, 5, 8))
    def test_gives_the_bits_of_one_process_whatever_is_late(self, size):
        """On a network that delays every message as it likes, with chunks of one element and more."""

        def call(group):
            ops = bit_cases.ops_of(group)
            seeds = range(size * 1000, size * 1000 + CALLS)
            return [bit_cases.check(bit_cases.Case(seed, size, 512), group, ops) for seed in seeds]

        _, outcomes = fake_groups.run(size, call, chunk_bytes=512)
        assert [len(alike) for alike in outcomes] == [CALLS] * size
        assert len(set(map(tuple, outcomes))) == 1


@pytest.mark.long
class TestManyElements:
    @pytest.mark.parametrize("size", range(2, 9))
    @pytest.mark.parametrize("replicas", [1, 2])
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_have_no_bit_that_differs(self, dtype, replicas, size):
        """10**7 sums of values that cancel, for each of 14 kinds of groups and dtype; in chunks of several sizes."""
        layout = tuple((rank,) for rank in range(size))
        done = run(hosts.many, size, layout, dtype, replicas, 10**7, backend="gloo", environment=ON_LOOPBACK)
        assert not (failures := [answer.text for answer in done if isinstance(answer, Raised)]), failures[0]
        assert {differing for _, differing in done} == {0}
        assert sum(compared for compared, _ in done) >= 10**7


class TestLittleRoom:
    def test_is_used_several_times(self):
        """Three ranks of a host pass each other more than their memory for results holds."""
        answers = run(hosts.in_little_room, 4, ((0, 1, 2), (3,)), 300_000, backend="gloo", environment=ON_LOOPBACK)
        assert answers == [[15.0]] * 4


class TestFrameworks:
    def test_get_what_they_bring(self):
        answers = run(hosts.frameworks, 3, ((0, 2), (1,)), backend="gloo", environment=ON_LOOPBACK)
        assert not (failures := [answer.text for answer in answers if isinstance(answer, Raised)]), failures[0]
        expected = [
            treefold.all_reduce([bit_cases.contribution(1, rank, 0, "float32", (length,)) for rank in range(3)], "mean")
            for length in (5, 7001)
        ]
        halves = [torch.arange(20_000).to(torch.bfloat16) * 2**rank for rank in range(3)]
        wanted = [(name, one[0].tobytes()) for name in ("torch", "jaxlib", "tensorflow") for one in expected]
        wanted.append(("in place", treefold.all_reduce(halves)[0].view(torch.int16).tolist()))
        assert answers == [wanted] * 3


class TestPlan:
    """``print(group.plan(value))``."""

    @staticmethod
    def plans(value, op, *, size=3, guarantee="exact"):
        return fake_groups.run(size, lambda group: group.plan(value, op), guarantee=guarantee)[1][0]

    @pytest.mark.parametrize(
        ("replicas", "op", "dtype", "guarantee", "times"),
        [
            (1, "sum", "float32", "exact", "1"),
            (2, "sum", "float32", "exact", "1.5"),
            (3, "mean", "float64", "exact", "1.51"),
            (16, "sum", "bfloat16", "exact", "1.51"),
            (3, "sum", "complex64", "exact", "2"),
            (3, "min", "float32", "exact", "1"),
            (3, "sum", "int32", "exact", "1"),
            (3, "product", "uint8", "exact", "1"),
            (3, "mean", "int32", "exact", "1.67"),
        ],
    )
    def test_says_what_travels(self, replicas, op, dtype, guarantee, times):
        """1.5 times the least, or (R + 1) / 2 for R replicas on each host; once, if no order changes a bit."""
        value = treefold.PerReplica([np.zeros(60_000, numpy_dtype(dtype))] * replicas)
        plan = self.plans(value, op)
        assert plan.guarantee == guarantee
        assert plan.notes == (f"between hosts travel {times} times the least bytes of an all-reduce",)
        assert f"note:      {plan.notes[0]}" in str(plan)
        assert from_json(plan.to_json()) == plan

    @pytest.mark.parametrize(("dtype", "times"), [("float32", "1"), ("float16", "1.5")])
    def test_of_per_plan(self, dtype, times):
        """Sums of 16 bits travel as float32, because sums of a host may overflow where the result does not."""
        plan = self.plans(treefold.PerReplica([np.zeros(60_000, dtype)] * 4), "sum", guarantee="per_plan")
        assert (plan.guarantee, plan.algorithm) == ("per_plan", "direct, folded on each host first")
        assert plan.notes == (f"between hosts travel {times} times the least bytes of an all-reduce",)

    def test_of_small_values(self):
        plan = self.plans(np.zeros(10), "sum", guarantee="per_plan")
        assert (plan.algorithm, plan.guarantee, plan.notes) == ("one shot", "exact", ())

    def test_warns_once_of_much_more_than_must(self):
        """More than twice the least, of three ranks in one process once; it names what needs less."""
        value = treefold.PerReplica([np.zeros(60_000, np.complex64)] * 4)

        sentence = (
            "Between hosts travel 2.5 times the least bytes of an all-reduce: hosts have several replicas each, and "
            'all go to where they are folded. connect(guarantee="per_plan") folds those of a host first; its bits '
            "depend on the plan."
        )
        plans._warned.clear()
        with pytest.warns(RuntimeWarning, match=f"^{re.escape(sentence)}$") as caught:
            self.plans(value, "sum")
        assert len(caught) == 1


class TestPerPlan:
    """``guarantee="per_plan"``: replicas of a host are folded and rounded once, then folded with other hosts'."""

    @pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
    @pytest.mark.parametrize("op", ["sum", "mean", "product"])
    def test_is_what_it_says(self, op, dtype):
        """The same as folds of one process, first of each rank's three replicas, then of the ranks."""
        everyone = [[finite(3 * rank + index, dtype) for index in range(3)] for rank in range(3)]

        def call(group):
            value = treefold.PerReplica(everyone[group.rank])
            return [group.all_reduce(value, op).tobytes() for _ in range(2)]

        first = "product" if op == "product" else "sum"
        with np.errstate(all="ignore"):
            parts = [treefold.all_reduce(own, first)[0] for own in everyone]
            expected = treefold.all_reduce(parts, first)[0]
            if op == "mean":
                numbers = "float32" if dtype == "complex64" else dtype  # part by part, as complex division would not
                expected = (sum(part.view(numbers).astype("float64") for part in parts) / 9).astype(numbers)
        _, outcomes = fake_groups.run(3, call, guarantee="per_plan")
        assert outcomes == [[expected.tobytes()] * 2] * 3

    @pytest.mark.parametrize(("op", "dtype"), [("mean", "int64"), ("mean", "int8"), ("sum", "float16")])
    def test_does_not_fold_first_what_would_overflow_or_travel_wide(self, op, dtype):
        """Sums of 64 bits overflow, and others are as large as what they are of: the result is one process's."""
        everyone = [[finite(2 * rank + index, dtype, 9001) for index in range(2)] for rank in range(2)]
        expected = treefold.all_reduce([*itertools.chain(*everyone)], op)[0].tobytes()

        def call(group):
            value = treefold.PerReplica(everyone[group.rank])
            return group.plan(value, op).guarantee, group.all_reduce(value, op).tobytes()

        _, outcomes = fake_groups.run(2, call, guarantee="per_plan")
        assert outcomes == [("exact", expected)] * 2

    def test_weights_are_those_of_replicas(self):
        everyone = [[finite(2 * rank + index, "float32") for index in range(2)] for rank in range(2)]
        weights = [[1.0, 0.0], [2.5, 0.25]]
        expected = treefold.all_reduce([*itertools.chain(*everyone)], "mean", weights=[*itertools.chain(*weights)])[0]

        def call(group):
            value = treefold.PerReplica(everyone[group.rank])
            return group.all_reduce(value, "mean", weights=weights[group.rank]).tobytes()

        assert fake_groups.run(2, call, guarantee="per_plan")[1] == [expected.tobytes()] * 2


class TestBytes:
    """The bytes between hosts, beside rounds of frames."""

    @staticmethod
    def sent(size, call):
        """Return the bytes that each rank sends to each other in messages of the call's values."""
        network, _ = fake_groups.run(size, call)
        return {
            way: sum(one.nbytes for one in network.sends if (one.sender, one.receiver) == way and one.tag > 1)
            for way in itertools.permutations(range(size), 2)
        }

    def test_an_all_reduce_sends_each_slice_there_and_back(self):
        length = 3 * 4096
        sent = self.sent(3, lambda group: group.all_reduce(owned(group.rank, (length,))).tobytes())
        assert set(sent.values()) == {2 * length * 4 // 3}

    def test_a_reduction_to_a_root_sends_results_to_it_alone(self):
        """Slices go to their owners, and the owners' results go to the root."""
        length = 3 * 4096
        sent = self.sent(3, lambda group: group.reduce(owned(group.rank, (length,)), root=1) is None)
        part = length * 4 // 3
        assert sent == {(0, 1): 2 * part, (2, 1): 2 * part, (0, 2): part, (2, 0): part, (1, 0): part, (1, 2): part}

    def test_a_reduce_scatter_sends_each_part_to_whom_it_belongs(self):
        length = 3 * 4096
        sent = self.sent(3, lambda group: group.reduce_scatter(owned(group.rank, (length,))).tobytes())
        assert set(sent.values()) == {length * 4 // 3}
