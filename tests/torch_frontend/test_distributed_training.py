"""DDP, FSDP2 and checkpoints on PyTorch's backend "treefold", between real processes."""

import pytest
from torch_ranks import checkpoints, hosts, run, training


class TestDistributedDataParallel:
    @pytest.mark.parametrize(
        "options",
        [{}, {"find_unused_parameters": True}, {"static_graph": True}, {"gradient_as_bucket_view": True}],
        ids=str,
    )
    def test_two_ranks_learn_what_gloo_learns(self, options):
        treefold_bits = run(training.train, 2, options, None)
        assert treefold_bits == run(training.train, 2, options, None, backend="gloo")
        assert treefold_bits[0] == treefold_bits[1]

    def test_has_several_buckets(self):
        first, second = run(training.buckets, 2)
        assert first == second >= 2

    def test_no_sync(self):
        first, second, third = run(training.no_sync, 3)
        assert first == second == third


@pytest.mark.parametrize("hook", ["mean_hook", "shared_mean_hook"])
class TestHooks:
    @pytest.mark.parametrize("size", [2, 3])
    @pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}], ids=str)
    def test_give_the_mean_of_one_process(self, hook, options, size):
        assert run(training.train, size, options, hook) == [training.train_alone(size)] * size

    def test_with_parameters_that_are_not_used(self, hook):
        options = {"find_unused_parameters": True}
        expected = training.train_alone(3, is_odd=lambda step: step % 2 == 1)
        assert run(training.train, 3, options, hook) == [expected] * 3

    def test_where_memory_is_small(self, hook):
        environment = {"TREEFOLD_GROUP_BYTES": "4096"}
        answers = run(training.train, 2, {}, hook, environment=environment)
        assert answers == [training.train_alone(2)] * 2


class TestAllReduceHook:
    @pytest.mark.parametrize("layout", [((0, 1, 2),), ((0,), (1,), (2,)), ((0, 2), (1,))], ids=str)
    def test_gives_the_mean_of_one_process_over_gloo(self, layout):
        answers = run(hosts.train, 3, layout, backend="gloo", environment={"GLOO_SOCKET_IFNAME": "lo"})
        assert answers == [training.train_alone(3)] * 3


class TestSharedMeanHook:
    def test_needs_this_backend(self):
        sentence = (
            'shared_mean_hook needs a process group of the backend "treefold", and this one is of "gloo". Make it with '
            'init_process_group("treefold") or new_group(backend="treefold").'
        )
        assert all(sentence in answer.text for answer in run(training.refused_hook, 2, backend="gloo"))


class TestMeanHook:
    def test_keeps_the_smallest_gradients(self):
        """A third of the smallest number of half precision is zero; the mean of three of them is not."""
        assert run(training.small_gradients, 3) == [1, 1, 1]


class TestFullyShard:
    def test_two_ranks_learn_what_gloo_learns(self):
        shards = run(training.shard, 2)
        assert shards == run(training.shard, 2, backend="gloo")
        assert shards[0] == shards[1]


class TestCheckpoint:
    def test_saves_and_loads(self, tmp_path):
        assert run(checkpoints.save_and_load, 2, str(tmp_path / "state")) == [(True, True)] * 2

    def test_saves_in_the_background(self, tmp_path):
        """PyTorch wants a group that takes tensors on the CPU."""
        assert run(checkpoints.save_in_the_background, 2, str(tmp_path / "state")) == [True] * 2

    @pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
    def test_rank_0_hands_out(self, kind):
        assert run(checkpoints.hand_out, 2, kind) == [set()] * 2

    def test_the_optimizer_of_fsdp1(self):
        assert run(checkpoints.optimizer_of_flat_shards, 2) == [{"weight": (5, 7), "bias": (5,)}] * 2

    def test_loads_one_file(self, tmp_path):
        assert run(checkpoints.load_one_file, 2, str(tmp_path)) == [[0, 1, 2, 3, 4, 5]] * 2
