import enum
import re
import typing

import pytest

from treefold import (
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
    PerReplica,
    ReduceOp,
    ReduceOpLike,
    ReductionToOneDevice,
)
from treefold.devices import Device, canonical_device, device_type, tensorflow_device, torch_device
from treefold.errors import ArgumentError, DeviceError
from treefold.reduce_op import _OTHER_NAMES


class TestReduceOp:
    def test_has_five_members(self):
        assert [op.name for op in ReduceOp] == ["SUM", "MEAN", "MIN", "MAX", "PRODUCT"]

    @pytest.mark.parametrize("name", ["MEAN", "mean", "Mean", "avg", "AVERAGE"])
    def test_is_found_by_name_in_any_case(self, name):
        assert ReduceOp(name) is ReduceOp.MEAN

    def test_is_found_by_another_library_s_enum(self):
        theirs = enum.Enum("ReduceOp", {"SUM": "SUM"})
        assert ReduceOp.parse(theirs.SUM) is ReduceOp.SUM


class TestReduceOpLike:
    def test_has_every_name_in_lower_case(self):
        op, names = typing.get_args(ReduceOpLike)[0], typing.get_args(ReduceOpLike)[1:]
        assert op is ReduceOp
        names = typing.get_args(names[0])
        assert {ReduceOp(name) for name in names} == set(ReduceOp)
        assert set(names) == {name.lower() for name in (*ReduceOp.__members__, *_OTHER_NAMES)}


class TestDeviceNames:
    @pytest.mark.parametrize(
        ("name", "short"),
        [
            ("cpu:0", "cpu:0"),
            ("/cpu:5", "cpu:5"),
            ("CPU:5", "cpu:5"),
            ("cpu", "cpu:0"),
            ("/device:GPU:1", "gpu:1"),
            ("cuda:1", "gpu:1"),
            ("GPU:01", "gpu:1"),
            ("/job:localhost/replica:0/task:0/device:CPU:3", "cpu:3"),
            ("/job:worker/cpu:2", "cpu:2"),
            ("job:localhost/task:0/cpu:1", "cpu:1"),
            ("/replica:0/cpu:1", "cpu:1"),
            (" gpu:1 ", "gpu:1"),
            ("mps:0", "mps:0"),
        ],
    )
    def test_mean_what_they_say(self, name, short):
        assert canonical_device(name) == short

    @pytest.mark.parametrize(
        "name",
        [
            "/",
            "garbage:x",
            "cpu:-1",
            "cpu:1:2",
            "/cpu:0/gpu:0",
            "/task:0",
            "gpu:*",
            "a b:0",
            "device:1",
            "2/",
            "2/3/cpu:0",
            "-1/cpu:0",
            "/replica:1/cpu:0",
            "2/task:1/cpu:0",
        ],
    )
    def test_that_mean_nothing_are_refused(self, name):
        sentence = (
            rf"^{name!r} is no device name\. Write "
            r'"cpu:0", "gpu:1", "cuda:1", "/device:GPU:1" or "/job:localhost/replica:0/task:0/device:GPU:1"\.$'
        )
        with pytest.raises(ValueError, match=sentence.replace("*", r"\*")):
            canonical_device(name)

    @pytest.mark.parametrize(
        ("name", "shown"),
        [
            ("cpu:" + "1" * 10_000, "'cpu:" + "1" * 52 + "..."),
            ("cpu:" + "0" * 10_000, "'cpu:" + "0" * 52 + "..."),
            ("/task:" + "1" * 10_000 + "/cpu:0", "'/task:" + "1" * 50 + "..."),
            ("x" * 10_000, "'" + "x" * 56 + "..."),
            (3, "3"),
            (None, "None"),
            (b"cpu:0", "b'cpu:0'"),
            (["cpu:0"], "['cpu:0']"),
        ],
        ids=lambda value: str(value)[:20],
    )
    def test_that_are_no_names_are_refused(self, name, shown):
        with pytest.raises(DeviceError, match=rf"^{re.escape(shown)} is no device name\. Write "):
            canonical_device(name)

    @pytest.mark.parametrize(
        ("name", "rank"),
        [
            ("2/gpu:0", 2),
            ("02/CUDA:0", 2),
            ("0/gpu:0", 0),
            ("/job:worker/task:2/device:GPU:0", 2),
            ("/job:worker/replica:0/task:0/device:GPU:0", 0),
            ("/job:localhost/replica:0/task:1/device:GPU:0", 1),
            ("/task:3/gpu", 3),
        ],
    )
    def test_may_have_a_rank(self, name, rank):
        """The number in front, or TensorFlow's task but for that of its local job; one spelling is canonical."""
        assert Device.parse(name) == Device("gpu", 0, rank)
        assert str(Device.parse(name)) == f"{rank}/gpu:0"
        assert Device.parse(f"{rank}/gpu:0") == Device("gpu", 0, rank)

    @pytest.mark.parametrize("name", ["2/gpu:0", "/job:worker/task:2/device:GPU:0"])
    def test_with_a_rank_need_a_group(self, name):
        sentence = (
            rf"^'{name}' is a device of rank 2, and ranks need a group of processes, which this call does not have\. "
            r'Names without a rank mean devices of this process: write "gpu:0" for its own\.$'
        )
        for call in (
            lambda: canonical_device(name),
            lambda: PerReplica([1.0], [name]),
            lambda: ReductionToOneDevice().reduce("sum", PerReplica([1.0]), ["cpu:0", name]),
            lambda: ReductionToOneDevice(name),
        ):
            with pytest.raises(DeviceError, match=sentence):
                call()

    def test_become_those_of_frameworks(self):
        assert [torch_device(name) for name in ("gpu:1", "CUDA:1", "cpu:3", "mps:0")] == [
            "cuda:1",
            "cuda:1",
            "cpu",
            "mps:0",
        ]
        assert tensorflow_device("gpu:1") == "/device:GPU:1"
        assert Device.parse(tensorflow_device("cpu:2")) == Device("cpu", 2)
        assert [device_type(name) for name in ("cpu:0", "cuda:1", "2/gpu:0")] == ["cpu", "gpu", "2/gpu"]

    @pytest.mark.parametrize("devices", [3, {"cpu:0"}, {"cpu:0": 1}, b"cpu:0", iter(["cpu:0"])])
    def test_of_components_are_a_list_or_a_tuple(self, devices):
        with pytest.raises(
            ArgumentError, match=r"^PerReplica got devices=.+\. It takes a list or tuple of device names"
        ):
            PerReplica([1.0], devices)
        assert PerReplica([1.0], "cpu:3").devices == ("cpu:3",)


class TestCommunicationOptions:
    def test_defaults_ask_for_nothing(self):
        options = CommunicationOptions()
        assert (options.bytes_per_pack, options.timeout_seconds) == (0, None)
        assert options.implementation is CommunicationImplementation.AUTO

    @pytest.mark.parametrize("name", ["NCCL", "nccl", CommunicationImplementation.NCCL])
    def test_take_the_implementation_by_name(self, name):
        assert CommunicationOptions(implementation=name).implementation is CommunicationImplementation.NCCL

    def test_have_an_older_name(self):
        """CollectiveHints of TensorFlow 2.2 are options."""
        assert isinstance(CollectiveHints(bytes_per_pack=7), CommunicationOptions)
        assert CollectiveHints(7, 2.5).timeout_seconds == 2.5

    @pytest.mark.parametrize("value", [-1, 1.5, True, "1", None])
    def test_refuse_bytes_that_are_no_count(self, value):
        with pytest.raises(
            ValueError,
            match=r"^bytes_per_pack is .+\. It takes a whole number of bytes; 0 leaves packing to num_packs\.$",
        ):
            CommunicationOptions(bytes_per_pack=value)

    @pytest.mark.parametrize("value", [0, -1, True, "1", float("inf"), float("nan")])
    def test_refuse_seconds_that_are_no_time(self, value):
        sentence = r"^timeout_seconds is .+\. It takes a number of seconds above 0, or None for no limit\.$"
        with pytest.raises(ValueError, match=sentence):
            CommunicationOptions(timeout_seconds=value)
