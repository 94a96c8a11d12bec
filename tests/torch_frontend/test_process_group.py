"""PyTorch's backend "treefold": every collective of ``torch.distributed``, between real processes."""

import itertools
import os
import signal

import pytest
import torch
from torch_ranks import Raised, collectives, refusals, run

from treefold.torch.c10d import flat

DTYPES = ["float32", "float64", "float16", "bfloat16", "complex64", "int32", "int64", "uint8"]


class TestAllReduce:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_sums_every_rank_once(self, dtype):
        assert run(collectives.all_reduce, 3, "SUM", getattr(torch, dtype)) == [[7, 7, 7]] * 3

    @pytest.mark.parametrize(("op", "expected"), [("AVG", 7 / 3), ("MIN", 1), ("MAX", 4), ("PRODUCT", 8)])
    def test_takes_the_other_ops(self, op, expected):
        assert run(collectives.all_reduce, 3, op, torch.float64) == [[expected] * 3] * 3

    def test_writes_through_strides(self):
        assert run(collectives.all_reduce_strided, 2) == [[[3, 1, 3, 1]] * 2, [[3, 2, 3, 2]] * 2]

    def test_goes_in_parts_where_memory_is_small(self):
        environment = {"TREEFOLD_GROUP_BYTES": "65536"}
        assert run(collectives.all_reduce_large, 3, 50_000, environment=environment) == [True] * 3

    def test_together(self):
        assert run(collectives.all_reduce_together, 2) == [([3, 3], [30, 30, 30])] * 2

    def test_async(self):
        assert run(collectives.all_reduce_async, 2) == [(False, True, [3, 3, 3], [[3, 3, 3]], [3, 3, 3])] * 2

    def test_async_of_several_groups_in_another_order_on_each_rank(self):
        assert run(collectives.in_another_order, 2) == [[[3], [30]]] * 2

    def test_inference_tensors(self):
        assert run(collectives.inference, 2) == [[3], [3]]

    def test_autograd_sees_the_write(self):
        """Version counters count, so a backward pass that needs the old value raises."""
        assert run(collectives.version_after, 2) == [(True, True)] * 2


class TestReduce:
    def test_reaches_the_root_only(self):
        assert run(collectives.reduce, 3, 1) == [[1, 1, 1], [7, 7, 7], [4, 4, 4]]


class TestBroadcast:
    def test_copies_the_roots_value(self):
        assert run(collectives.broadcast, 3, 2) == [[4, 4, 4]] * 3


class TestAllGather:
    def test_takes_parts_of_any_length(self):
        assert run(collectives.all_gather, 3) == [[[1], [2, 2], [4, 4, 4]]] * 3

    def test_into_one_tensor(self):
        assert run(collectives.all_gather_single, 2) == [([1, 1, 2, 2], [[1, 1], [2, 2]])] * 2

    def test_goes_in_parts_where_memory_is_small(self):
        environment = {"TREEFOLD_GROUP_BYTES": "4096"}
        expected = [float(2 ** (index // 2)) for index in range(4)]
        answers = run(collectives.all_gather_single, 2, environment=environment)
        assert [joined for joined, _ in answers] == [expected] * 2


class TestGather:
    def test_reaches_the_root_only(self):
        assert run(collectives.gather, 3, 1) == [None, [[1, 1], [2, 2], [4, 4]], None]


class TestScatter:
    def test_gives_each_rank_its_part(self):
        assert run(collectives.scatter, 3, 2) == [[1, 1], [2, 2], [4, 4]]


class TestFutures:
    def test_hold_a_list(self):
        first, second = run(collectives.futures, 2)
        assert first == [[1, 2], [1, 2], [1, 2]]
        assert second == [[1, 2], [1, 2], []]

    def test_call_back_where_other_calls_can_be_waited_for(self):
        assert run(collectives.callbacks_that_call, 2) == [[[3], [30], [300], [33]]] * 2

    def test_that_fail(self):
        assert run(collectives.failed_future, 2) == [([True, True], "CallMismatchError", [3, 3, 3])] * 2


class TestWait:
    def test_that_is_too_short(self):
        """The call goes on."""
        first, second = run(collectives.impatient_wait, 2)
        assert first == (("DeadlineError", "The call was not over within 0.2 s"), [3, 3, 3])
        assert second == (None, [3, 3, 3])


class TestSharedMean:
    def test_of_nothing(self):
        assert run(collectives.empty_mean, 2) == [[[], [1.5, 1.5]]] * 2


class TestReduceScatter:
    def test_of_a_list(self):
        assert run(collectives.reduce_scatter, 3) == [[7, 7], [307, 307], [607, 607]]

    @pytest.mark.parametrize("elements", [2, 5000])
    def test_of_one_tensor(self, elements):
        expected = [[7.0] * elements, [307.0] * elements, [607.0] * elements]
        assert run(collectives.reduce_scatter_single, 3, "SUM", elements) == expected

    def test_goes_in_parts_where_memory_is_small(self):
        answers = run(
            collectives.reduce_scatter_single, 2, "AVG", 10_000, environment={"TREEFOLD_GROUP_BYTES": "16384"}
        )
        assert answers == [[1.5] * 10_000, [101.5] * 10_000]

    @pytest.mark.parametrize("memory", ["4096", "65536", "1048576"])
    @pytest.mark.parametrize("lengths", [(5000, 3, 900), (0, 0, 4000), (1, 512, 513)])
    def test_of_unequal_parts(self, memory, lengths):
        answers = run(
            collectives.reduce_scatter_of_unequal_parts, 3, lengths, environment={"TREEFOLD_GROUP_BYTES": memory}
        )
        for rank, (first, second) in enumerate(answers):
            assert first == [lengths[rank], [7.0 + 300 * rank][: lengths[rank]]]
            assert second == [lengths[::-1][rank], [7.0 + 300 * rank][: lengths[::-1][rank]]]

    @pytest.mark.parametrize("elements", [2, 5000])
    def test_in_place(self, elements):
        first, second = run(collectives.reduce_scatter_in_place, 2, elements)
        assert first == [3.0] * elements + [1.0] * elements
        assert second == [2.0] * elements + [3.0] * elements


class TestAllToAll:
    def test_of_lists(self):
        assert run(collectives.all_to_all, 3) == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]

    def test_of_one_tensor(self):
        assert run(collectives.all_to_all_single, 3, True) == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]  # noqa: FBT003

    def test_of_one_tensor_by_sizes(self):
        expected = [[0, 10, 20], [1, 2, 11, 12, 21, 22], [3, 4, 5, 13, 14, 15, 23, 24, 25]]
        assert run(collectives.all_to_all_single, 3, False) == expected  # noqa: FBT003

    def test_sizes_that_differ(self):
        sentence = (
            "Rank 0 sends 1 element to rank 0, which expects 2. Split sizes must agree, so nothing was moved, on no "
            "rank."
        )
        assert run(collectives.all_to_all_wrong, 2) == [Raised("MismatchError", sentence)] * 2


class TestOverlaps:
    @pytest.mark.parametrize("elements", [5, 3000])
    def test_do_not_show(self, elements):
        """Gathered, exchanged, scattered, summed where the input lies, in one part of the group's memory or more."""
        environment = {"TREEFOLD_GROUP_BYTES": "8192"}
        assert run(collectives.overlapping_parts, 3, elements, environment=environment) == [[True] * 4] * 3


class TestFlat:
    def test_writes_all_that_a_call_has_given_though_it_is_interrupted(self, monkeypatch):
        tensors, calls = [torch.zeros(2, 2).t() for _ in range(3)], itertools.count()
        written = flat.Flat()
        for tensor in tensors:
            written.target(tensor).fill_(7)
        check = flat.in_memory

        def interrupted(tensor):
            if next(calls) == 1:
                raise KeyboardInterrupt
            check(tensor)

        monkeypatch.setattr(flat, "in_memory", interrupted)
        with pytest.raises(KeyboardInterrupt):
            written.finish()
        assert [tensor.unique().tolist() for tensor in tensors] == [[7]] * 3


class TestObjects:
    def test_travel(self):
        assert run(collectives.objects, 3) == [([{"rank": 0}, {"rank": 1}, {"rank": 2}], [{"of": 1}])] * 3


class TestFunctional:
    def test_every_collective(self):
        answers = run(collectives.functional_forms, 2)
        assert answers == [[[3] * 4, [1, 2], [1.5, 1.5], [1, 2], [2, 2], [2], [2, 2]]] * 2


class TestNewGroup:
    def test_groups_overlap(self):
        assert run(collectives.overlapping_groups, 3) == [[(0, 3)], [(1, 3), (0, 6)], [(1, 6)]]

    def test_is_pytorchs_non_member_on_other_ranks(self):
        first, *others = run(collectives.outside, 2)
        assert first == (["TreefoldProcessGroup"] * 2, 0)
        assert others == run(collectives.outside, 2, backend="gloo")[1:]

    def test_a_mesh(self):
        assert run(collectives.mesh_sums, 4) == [[5, 3], [10, 3], [5, 12], [10, 12]]

    def test_again_and_again(self):
        assert run(collectives.again, 2) == [[3, 3, 3]] * 2


class TestThreads:
    def test_take_turns(self):
        assert run(collectives.threads, 2) == [([], [3.0] * 8)] * 2

    def test_have_cores_of_their_own(self):
        """With two cores, each of two ranks has one; with fewer cores than ranks, they share one."""
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) > 1:
            assert run(collectives.cores, 2, 2) == [usable[:1], usable[1:2]]
        assert run(collectives.cores, 2, 1) == [usable[:1]] * 2

    @pytest.mark.parametrize(
        ("handler", "kind", "told"),
        [
            (signal.default_int_handler, "KeyboardInterrupt", "Rank 0 was interrupted"),
            (collectives.raise_timeout, "TimeoutError", "Rank 0 has left the group with an error"),
        ],
    )
    def test_one_is_interrupted(self, handler, kind, told):
        """The interrupt comes while it waits for its call: it leaves, so the others do not wait for the next one."""
        first, second = run(collectives.interrupted, 2, handler, seconds=30.0)
        assert first[0] == kind
        assert second[0] == "PeerLostError"
        assert second[1].startswith(told)

    def test_a_fork_in_a_call(self):
        """The child has no thread that would end the call."""
        said = run(collectives.forked_in_a_call, 2, seconds=30.0)[0]
        assert said.startswith("This process was forked from rank 0 and is no rank itself.")


class TestRefusals:
    @pytest.mark.parametrize(
        ("what", "kind", "sentence"),
        [
            (
                "op",
                "ProcessGroupError",
                'PyTorch\'s backend "treefold" got ReduceOp.BAND. It takes SUM, AVG, MIN, MAX, PRODUCT.',
            ),
            (
                "mean",
                "ProcessGroupError",
                "ReduceOp.AVG got torch.bool. It takes floating-point and complex tensors, or whole numbers of 8 to 64 "
                "bits, not both in one call. Convert the tensor first.",
            ),
            (
                "layout",
                "ProcessGroupError",
                'PyTorch\'s backend "treefold" got a sparse_coo tensor. It takes dense tensors: give '
                "tensor.to_dense(), or let the module make dense gradients, as torch.nn.Embedding does with "
                "sparse=False.",
            ),
            (
                "device",
                "DeviceError",
                'PyTorch\'s backend "treefold" got a tensor on meta. It takes tensors on the CPU; '
                'copy it there, or name a backend for GPUs, too: init_process_group("cpu:treefold,cuda:nccl").',
            ),
        ],
    )
    def test_says_what_it_takes(self, what, kind, sentence):
        assert run(refusals.refused, 2, what) == [(kind, sentence, 3)] * 2

    def test_a_tensor_that_stands_twice_in_a_call_of_parts(self):
        for answer in run(refusals.refused, 2, "twice in parts", environment={"TREEFOLD_GROUP_BYTES": "4096"}):
            assert answer[0] == "ProcessGroupError"
            assert answer[1].startswith("Some tensors of this call share memory, and would be reduced twice.")
            assert answer[2] == 3

    @pytest.mark.parametrize("what", ["more parts", "more parts of rows"])
    def test_calls_of_more_parts_than_the_others(self, what):
        for name, sentence, total in run(refusals.refused, 2, what, environment={"TREEFOLD_GROUP_BYTES": "4096"}):
            assert name == "CallMismatchError"
            assert sentence.endswith("Nothing was done."), sentence
            assert total == 3

    def test_calls_that_differ(self):
        first, second = run(refusals.refused, 2, "shape")
        assert first == second
        assert first[0] == "CallMismatchError"
        assert first[1].startswith(
            "Rank 1 calls all_reduce, SUM, of float32 (3,) at [0], while rank 0 calls all_reduce"
        )

    def test_a_sum_is_no_mean_of_whole_numbers(self):
        """Though the halves of two numbers are as many as four numbers."""
        for kind, _, total in run(refusals.refused, 2, "sum and mean"):
            assert (kind, total) == ("CallMismatchError", 3)

    def test_one_rank_alone(self):
        wrong, right = run(refusals.refused, 2, "size")
        sentence = (
            "all_gather got a tensor of 3 float32, where one of 2 float32 belongs. Ranks bring and take tensors of one "
            "size and dtype."
        )
        assert wrong == ("ProcessGroupError", sentence, 3)
        assert right == (
            "CallMismatchError",
            f"Rank 0 could not make this call: {sentence} Nothing was done, on no rank.",
            3,
        )

    @pytest.mark.parametrize(
        ("what", "rank"), [("broadcast", 7), ("reduce", 7), ("gather root", -2), ("scatter root", 2)]
    )
    def test_a_root_that_is_no_rank(self, what, rank):
        sentence = f"Got rank {rank} of a group of 2 ranks. Give a src or dst of 0 to 1."
        assert run(refusals.refused, 2, what) == [("ProcessGroupError", sentence, 3)] * 2

    def test_a_list_on_every_rank(self):
        sentence = (
            "reduce_scatter got a list of 3 tensors in a group of 2 ranks. The list has one tensor for each rank, in "
            "order of ranks."
        )
        assert run(refusals.refused, 2, "reduce_scatter list") == [("ProcessGroupError", sentence, 3)] * 2

    @pytest.mark.parametrize(
        ("what", "kind", "begin"),
        [
            ("scatter list", "ProcessGroupError", "scatter got a list of 3 tensors in a group of 2 ranks."),
            ("gather list", "ProcessGroupError", "gather got a list of 1 tensor in a group of 2 ranks."),
            ("all_gather list", "ProcessGroupError", "all_gather got a list of 3 tensors in a group of 2 ranks."),
            (
                "all_gather rows",
                "ProcessGroupError",
                "all_gather_coalesced got a list of 1 output for a rank, and 2 inputs.",
            ),
            ("gathered layout", "ProcessGroupError", 'PyTorch\'s backend "treefold" got a sparse_coo tensor.'),
            ("scattered layout", "ProcessGroupError", 'PyTorch\'s backend "treefold" got a sparse_coo tensor.'),
            ("exchanged layout", "ProcessGroupError", 'PyTorch\'s backend "treefold" got a sparse_coo tensor.'),
            (
                "overlapping",
                "ProcessGroupError",
                "A tensor of shape (4,) and strides (0,) is to be written, and several",
            ),
            (
                "overlapping copy",
                "ProcessGroupError",
                "A tensor of shape (4,) and strides (0,) is to be written, and several",
            ),
            *(
                (
                    what,
                    "ProcessGroupError",
                    "A tensor of shape (4, 2) and strides (1, 1) is to be written, and several",
                )
                for what in ("windows", "windows of parts", "windows of rows")
            ),
            ("freed", "ProcessGroupError", "A tensor needs 16 bytes of its storage, which has 0 bytes."),
            (
                "quantized",
                "ProcessGroupError",
                "A quantized tensor (torch.quint8) has a scale beside its numbers. Give the numbers, "
                "tensor.int_repr(), and the scale as tensors of their own.",
            ),
        ],
    )
    def test_what_one_rank_brings(self, what, kind, begin):
        wrong, right = run(refusals.refused, 2, what)
        assert (wrong[0], wrong[2]) == (kind, 3)
        assert wrong[1].startswith(begin)
        assert (right[0], right[2]) == ("CallMismatchError", 3)
        assert right[1].startswith(f"Rank 0 could not make this call: {begin}")


class TestTimeout:
    def test_is_the_deadline(self):
        answers = run(collectives.absent, 3, 4.0)
        assert [answer.kind for answer in answers[:2]] == ["DeadlineError"] * 2
        assert all(answer.text.startswith("Rank 2 had not come by the deadline") for answer in answers[:2])

    def test_of_one_call(self):
        answer, _ = run(collectives.impatient, 2, 2.0)
        assert answer.kind == "DeadlineError"

    def test_of_pytorchs_own_function(self):
        """It serves two backends, which a warning tells; this one keeps its timeout."""
        said = "Set timeout is now only supported for either nccl or gloo."
        assert run(collectives.private_timeout, 2) == [([said], 60)] * 2
