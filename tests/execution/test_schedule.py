"""Plans cut into operations on streams: pipelined, staged where links lie, and never a race."""

import dataclasses
import itertools
import os

import numpy as np
import pytest
from fake_streams import FakeStreams, RaceError
from hypothesis import given, settings
from hypothesis import strategies as st

import treefold
from treefold import AllReduceCrossDeviceOps, HierarchicalCopyAllReduce, PerReplica, ReduceOp, ReductionToOneDevice
from treefold.backends import additional_backend
from treefold.execution.schedule import DeviceStream, issue, make_schedule
from treefold.fold import Fold
from treefold.plan.ir import Combine, Copy
from treefold.testing import FakeBackend, assert_same_bits, owned

CASES = {"full": 2000}.get(os.environ.get("TREEFOLD_CASES", ""), 40)
SHAPES = [(), (5,), (0,), (7, 9), (100,)]


def planned(ops, devices, shapes=((1000,),), dtype="float32"):
    """Return the plan for a batch of arrays on fake devices, and the arrays: per leaf, in replica order."""
    columns = [[owned(replica, shape, dtype) for replica in range(len(devices))] for shape in shapes]
    with additional_backend(FakeBackend(9)) as fake:
        values = [PerReplica([fake.array(a, d) for a, d in zip(column, devices, strict=True)]) for column in columns]
        return ops.plan([(value, value) for value in values]), columns


def gpus(count):
    return [f"gpu:{index}" for index in range(count)]


def run(plan, columns, op=ReduceOp.SUM, *, chunk_bytes=256, is_direct=None, seed=0):
    """Run a plan on fake streams and return the outputs of each leaf."""
    more = {} if is_direct is None else {"is_direct": is_direct}
    schedule = make_schedule(plan, chunk_bytes=chunk_bytes, **more)
    streams = FakeStreams(schedule, columns, Fold(op), seed=seed)
    issue(schedule, streams)
    return schedule, streams.finish()


OPS = (
    ReductionToOneDevice(),
    HierarchicalCopyAllReduce(num_packs=1),
    HierarchicalCopyAllReduce(num_packs=5),
    AllReduceCrossDeviceOps("hierarchical_copy", num_packs=0),
    AllReduceCrossDeviceOps("hierarchical_copy", 0, agg_small_grads_max_bytes=64, agg_small_grads_max_group=2),
)


@settings(max_examples=CASES, deadline=None)
@given(
    ops=st.sampled_from(OPS),
    num_devices=st.integers(1, 9),
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4),
    dtype=st.sampled_from(["float32", "float16", "int32", "float64"]),
    op=st.sampled_from([ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.MAX]),
    chunk_bytes=st.sampled_from([1, 24, 256, 10**9]),
    staged=st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8))),
    seed=st.integers(0, 2**32),
)
def test_any_order_that_streams_allow_gives_the_same_bits(
    ops, num_devices, shapes, dtype, op, chunk_bytes, staged, seed
):
    """Every chunk size, every set of links that lie, every order of streams: what one device after the other gives."""
    devices = gpus(num_devices)
    plan, columns = planned(ops, devices, shapes, dtype)
    lying = {(f"gpu:{a}", f"gpu:{b}") for a, b in staged}
    _, outputs = run(plan, columns, op, chunk_bytes=chunk_bytes, is_direct=lambda *pair: pair not in lying, seed=seed)
    with additional_backend(FakeBackend(9)) as fake:
        pairs = [PerReplica([fake.array(a, d) for a, d in zip(c, devices, strict=True)]) for c in columns]
        expected = ops.batch_reduce(op, [(value, value) for value in pairs])
    for got, want in zip(outputs, expected, strict=True):
        for one, other in zip(got, want.values, strict=True):
            assert_same_bits(one, other.data.ravel())


class TestOrder:
    def test_reduction_and_broadcast_are_in_flight_together(self):
        plan, columns = planned(ReductionToOneDevice(), gpus(2))
        schedule, _ = run(plan, columns)
        streams = [operation.stream for operation in schedule.operations]
        first_down = streams.index(DeviceStream("gpu:0", "gpu:1"))
        last_up = len(streams) - 1 - streams[::-1].index(DeviceStream("gpu:1", "gpu:0"))
        assert first_down < last_up

    def test_streams_are_one_per_directed_pair_and_one_for_arithmetic(self):
        plan, columns = planned(ReductionToOneDevice(), gpus(3))
        schedule, _ = run(plan, columns)
        assert set(schedule.streams) == {
            DeviceStream("gpu:1", "gpu:0"),
            DeviceStream("gpu:2", "gpu:0"),
            DeviceStream("gpu:0"),
            DeviceStream("gpu:0", "gpu:1"),
            DeviceStream("gpu:0", "gpu:2"),
        }

    def test_waits_are_few(self):
        """An operation waits for at most one other per stream, and never again for what was waited for."""
        plan, columns = planned(HierarchicalCopyAllReduce(num_packs=4), gpus(8), [(4096,)])
        schedule, _ = run(plan, columns)
        known = {}
        for operation in schedule.operations:
            others = [schedule.operations[wait].stream for wait in operation.waits]
            assert len(set(others)) == len(others)
            assert operation.stream not in others
            for wait, other in zip(operation.waits, others, strict=True):
                assert wait > known.get((operation.stream, other), -1)
                known[operation.stream, other] = wait

    def test_an_action_is_cut_into_at_most_256_chunks(self):
        """Chunks grow where there would be too many: each costs a launch and an event."""
        plan, _ = planned(ReductionToOneDevice(), gpus(2), [(100_000,)])
        schedule = make_schedule(plan, chunk_bytes=4)
        copies = [o for o in schedule.operations if o.stream == DeviceStream("gpu:1", "gpu:0")]
        assert 250 <= len(copies) <= 256

    def test_a_callback_gets_whole_arrays(self):
        plan, _ = planned(ReductionToOneDevice(accumulation_fn=sum), gpus(2))
        schedule = make_schedule(plan, chunk_bytes=4)
        combines = [o.action for o in schedule.operations if isinstance(o.action, Combine)]
        assert [combine.target.length for combine in combines] == [1000]


class TestStaging:
    def test_goes_through_two_halves_of_one_buffer(self):
        plan, columns = planned(ReductionToOneDevice(), gpus(2))
        schedule, _ = run(plan, columns, is_direct=lambda source, _target: source != "gpu:1")
        (staging,) = schedule.staging
        assert schedule.buffers[staging].length == 2 * 64
        ways = [("gpu:1", "host"), ("host", "gpu:0"), ("gpu:0", "gpu:1")]
        assert {DeviceStream(*way) for way in ways} <= set(schedule.streams)
        assert DeviceStream("gpu:1", "gpu:0") not in schedule.streams
        starts = [
            o.action.target.start
            for o in schedule.operations
            if isinstance(o.action, Copy) and o.action.target.buffer == staging
        ]
        assert starts[:4] == [0, 64, 0, 64]


def without_waits(schedule):
    """Return the schedule once for each wait, without it."""
    return [
        dataclasses.replace(
            schedule,
            operations=tuple(
                dataclasses.replace(o, waits=tuple(w for w in o.waits if (p, w) != (position, wait)))
                for p, o in enumerate(schedule.operations)
            ),
        )
        for position, operation in enumerate(schedule.operations)
        for wait in operation.waits
    ]


@pytest.mark.parametrize("is_staged", [False, True])
def test_no_wait_is_superfluous(is_staged):
    """Leave out any one wait, and the fake streams find a race: they would find one in the scheduler too."""
    plan, columns = planned(HierarchicalCopyAllReduce(num_packs=2), gpus(4), [(64,), (33,)])
    schedule = make_schedule(plan, chunk_bytes=64, is_direct=lambda *_pair: not is_staged)
    mutants = without_waits(schedule)
    assert len(mutants) > 20
    for mutant in mutants:
        with pytest.raises(RaceError):
            issue(mutant, FakeStreams(mutant, columns, Fold(ReduceOp.SUM)))


def test_a_schedule_runs_on_one_thread_in_its_own_order():
    plan, _ = planned(HierarchicalCopyAllReduce(num_packs=3), gpus(5), [(257,)])
    schedule = make_schedule(plan, chunk_bytes=100)
    written = {index for index, buffer in enumerate(schedule.buffers) if buffer.role.value == "input"}
    for operation in schedule.operations:
        assert all(source.buffer in written for source in operation.action.sources)
        written.add(operation.action.target.buffer)


def test_the_oracle_agrees():
    for count, ops in itertools.product((3, 5, 7), OPS):
        plan, columns = planned(ops, gpus(count))
        _, outputs = run(plan, columns)
        expected = treefold.all_reduce([column.copy() for column in columns[0]])[0]
        for output in outputs[0]:
            assert np.array_equal(output, expected)
