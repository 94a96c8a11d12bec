import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout

import treefold
from treefold import HierarchicalCopyAllReduce, IndexedSlices, PerReplica, ReductionToOneDevice
from treefold.backends import backend_of
from treefold.backends import jax as jax_backend
from treefold.dtypes import COMPLEX, INTEGERS, REDUCIBLE
from treefold.errors import ArgumentError, MismatchError, OutputError
from treefold.testing import CONFORMANCE, Adapter

NUM_DEVICES = 8
# Before JAX's platforms start: every pytest process imports this file before it runs a test.
jax.config.update("jax_num_cpu_devices", NUM_DEVICES)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FEW = ("bfloat16", "float32", "float64", "int8", "int64", "complex64")
DTYPES = REDUCIBLE if os.environ.get("TREEFOLD_CASES") == "full" else FEW
OPS = ("sum", "mean", "min", "max", "product")
LARGE = (1 << 15,)  # 128 KiB of float32, which JAX can adopt

ALL_REDUCE, ONE_DEVICE = HierarchicalCopyAllReduce(), ReductionToOneDevice()


def put(array, device=0):
    """Return a JAX array with a copy of a NumPy array, of its dtype whatever jax_enable_x64 says."""
    with jax.enable_x64(True):  # noqa: FBT003 - JAX's own signature
        return jax.device_put(np.array(array), jax.devices("cpu")[device])


def replicas(count=NUM_DEVICES, shape=(3,), dtype="float32"):
    return PerReplica([put(np.full(shape, 2**r, dtype), r) for r in range(count)])


def spread():
    mesh = jax.make_mesh((NUM_DEVICES,), ("replica",))
    owners = np.array([2.0**r for r in range(NUM_DEVICES)], np.float32)
    return jax.device_put(owners, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("replica")))


def refused(call: Callable[[], object], error=ArgumentError):
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


class TestConformance:
    @pytest.mark.parametrize("placing", ["JAX's core", "device_put"])
    @pytest.mark.parametrize("case", CONFORMANCE, ids=lambda case: case.name)
    def test_holds(self, case, placing, monkeypatch):
        """The backend does what the interface says, on eight CPU devices; also where JAX keeps its core elsewhere."""
        assert jax_backend.BATCHED_DEVICE_PUT is not None
        if placing == "device_put":
            monkeypatch.setattr(jax_backend, "BATCHED_DEVICE_PUT", None)
        devices = tuple(f"cpu:{index}" for index in range(NUM_DEVICES))
        adapter = Adapter(backend_of(put(1.0)), devices, lambda a, device: put(a, int(device[4:])), np.asarray, DTYPES)
        assert case.run(adapter) is None


class TestNumbers:
    @pytest.mark.parametrize("dtype", REDUCIBLE)
    @pytest.mark.parametrize("op", OPS)
    def test_have_the_bits_of_numpy(self, dtype, op):
        """Random bits, NaN and infinities among them: every result has the bytes that NumPy arrays give."""
        if dtype in COMPLEX and op in {"min", "max"}:
            return
        random = np.random.default_rng(7)
        bits = [random.bytes(np.dtype(dtype).itemsize * 1001) for _ in range(5)]
        arrays = [np.frombuffer(b, dtype) for b in bits]
        expected = treefold.all_reduce(arrays, op)[0]
        if op == "mean" and dtype in INTEGERS:
            expected = expected.astype("float32")  # there is no float64 without x64
        found = treefold.all_reduce([put(array, r) for r, array in enumerate(arrays)], op)
        for array in found:
            assert array.dtype == expected.dtype
            assert np.asarray(array).tobytes() == expected.tobytes()

    @pytest.mark.parametrize("weights", [None, (1, 2**40, 3)])
    def test_means_of_integers_are_rounded_once(self, weights):
        """Beside a midpoint of float32, nearer than float64 tells: to float32 from the exact value, not by float64."""
        numbers = [[2**62 + 2**38 + 1], [2**62 + 2**38], [2**62 + 2**38]]
        [mean, *_] = treefold.all_reduce([put(np.array(n), r) for r, n in enumerate(numbers)], "mean", weights=weights)
        shares = weights or (1, 1, 1)
        exact = Fraction(sum(w * n for w, [n] in zip(shares, numbers, strict=True)), sum(shares))
        assert exact > 2**62 + 2**38
        assert (mean.dtype, float(mean[0])) == (np.float32, 2.0**62 + 2.0**39)

    def test_of_64_bits_stay_so_without_x64(self):
        """64 bits stay 64 bits, whatever jax_enable_x64 is."""
        assert not jax.config.jax_enable_x64
        total = treefold.all_reduce([put(np.array([2.0**60 + r * 2**8])) for r in range(2)])[0]
        assert (total.dtype, float(total[0])) == (np.float64, 2.0**61 + 2**8)

    def test_weak_types_become_their_dtype(self):
        [total] = treefold.all_reduce([jnp.asarray(2.0)])
        assert (total.dtype, total.weak_type, float(total)) == (np.float32, False, 2.0)

    @pytest.mark.parametrize("shape", [(), (0, 3), (1,), (2, 3, 4)])
    def test_of_any_shape(self, shape):
        for total in treefold.all_reduce(replicas(3, shape)):
            assert total.shape == shape
            assert (np.asarray(total) == 7).all()

    def test_of_an_array_in_another_layout(self):
        kept = Format(Layout((1, 0)), jax.sharding.SingleDeviceSharding(jax.devices("cpu")[1]))
        contents = np.arange(6, dtype=np.float32).reshape(2, 3)
        turned = jax.device_put(contents, kept)
        assert np.array_equal(treefold.all_reduce([turned, turned])[0], 2 * contents)


class TestDevices:
    def test_results_are_committed_to_their_destination(self):
        value = replicas()
        result = ALL_REDUCE.reduce("sum", value, value)
        assert [next(iter(total.devices())) for total in result] == jax.devices("cpu")
        assert all(total.committed for total in result)
        assert [float(total[0]) for total in result] == [255.0] * NUM_DEVICES

    def test_arrays_stand_where_jax_has_them(self):
        """Uncommitted arrays are on JAX's default device, all of them."""
        assert PerReplica([jnp.ones(3), jnp.ones(3)]).devices == ("cpu:0", "cpu:0")
        assert replicas(3).devices == ("cpu:0", "cpu:1", "cpu:2")

    def test_an_array_is_a_destination(self):
        result = ONE_DEVICE.reduce("sum", replicas(3), put(0.0, 5))
        assert result.devices == ("cpu:5",)
        assert result[0].devices() == {jax.devices("cpu")[5]}

    def test_a_call_seen_before_on_other_devices_is_another_call(self):
        for first in (0, 3, 0, 3):
            value = PerReplica([put(1.0, first), put(2.0, first + 1)])
            result = ALL_REDUCE.reduce("sum", value, value)
            devices = jax.devices("cpu")
            assert [next(iter(total.devices())) for total in result] == devices[first : first + 2]


class TestMemory:
    def test_arrays_are_read_where_they_lie(self):
        for dtype in ("float32", "bfloat16", "complex64", "int8"):
            array = put(np.ones(5, dtype), 3)
            view = backend_of(array).host_view(array)
            assert view.__array_interface__["data"][0] == array.unsafe_buffer_pointer()
            assert not view.flags.writeable

    def test_large_results_are_adopted_on_every_device(self):
        """One memory serves all devices, without a copy: it is treefold's, and goes back when JAX lets go."""
        value = replicas(shape=LARGE)
        before = treefold.host_memory_info()["used_bytes"]
        result = ALL_REDUCE.reduce("sum", value, value)
        nbytes = 4 * LARGE[0]
        assert treefold.host_memory_info()["used_bytes"] - before == nbytes
        assert len({total.unsafe_buffer_pointer() for total in result}) == 1
        del result
        put(0.0)  # JAX lets go of foreign memory in its next call
        assert treefold.host_memory_info()["used_bytes"] == before

    def test_results_do_not_change_when_others_are_made(self):
        """A result that is alive keeps its memory, also when JAX has donated another's."""
        value = replicas(2, LARGE)
        first = ALL_REDUCE.reduce("sum", value, value)
        doubled = jax.jit(lambda x: x * 2, donate_argnums=0)(first[0])
        second = ALL_REDUCE.reduce("max", value, value)
        assert {float(first[1][5]), float(doubled[5]), float(second[0][5]), float(second[1][5])} == {3.0, 6.0, 2.0}
        assert first[0].is_deleted()

    def test_inputs_may_be_donated_afterwards(self):
        """No view is kept: JAX gets the memory of a donated input to reuse, in place."""
        array = jnp.ones(LARGE)  # in memory of JAX's own
        treefold.all_reduce([array, array])
        address = array.unsafe_buffer_pointer()
        assert jax.jit(lambda x: x * 2, donate_argnums=0)(array).unsafe_buffer_pointer() == address

    def test_arrays_cannot_be_out(self):
        value = replicas(2)
        assert refused(lambda: ALL_REDUCE.reduce("sum", value, value, out=value), OutputError) == (
            "Replica 0 has an array that cannot be written. "
            "To take the result it needs a writable JAX array of float32 "
            "(3,). Nothing was written."
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    kernel: jax.Array
    bias: jax.Array
    name: str = dataclasses.field(default="dense", metadata={"static": True})


@jax.tree_util.register_pytree_with_keys_class
class Frozen:
    """A mapping that only JAX knows, as flax's FrozenDict."""

    def __init__(self, contents):
        self.contents = contents

    def tree_flatten_with_keys(self):
        names = sorted(self.contents)
        return [(jax.tree_util.DictKey(name), self.contents[name]) for name in names], tuple(names)

    @classmethod
    def tree_unflatten(cls, names, children):
        return cls(dict(zip(names, children, strict=True)))


class TestPytrees:
    def test_of_parameters_in_dictionaries(self):
        grads = PerReplica([{"params": {"w": put(2.0**r, r), "b": put(3.0**r, r)}} for r in range(3)])
        for _ in range(3):
            result = ALL_REDUCE.reduce("sum", grads, grads)
            assert [float(part["params"]["w"]) for part in result] == [7.0] * 3
            assert [float(part["params"]["b"]) for part in result] == [13.0] * 3
            assert result.devices == ("cpu:0", "cpu:1", "cpu:2")

    def test_of_dataclasses_registered_with_jax(self):
        layers = [Frozen({"one": Layer(put(2.0**r, r), put(4.0**r, r), "one")}) for r in range(3)]
        result = ALL_REDUCE.reduce("sum", PerReplica(layers), ["cpu:0", "cpu:1"])
        layer = result[1].contents["one"]
        assert (type(layer), layer.name) == (Layer, "one")
        assert (float(layer.kernel), float(layer.bias)) == (7.0, 21.0)

    def test_of_different_static_fields_disagree(self):
        layers = [Layer(put(1.0), put(1.0), name) for name in ("one", "two")]
        assert refused(lambda: treefold.all_reduce(layers), MismatchError).startswith(
            "Replica 1 has a Layer of another structure, or of other static data, than replica 0's."
        )


class TestWithJax:
    def test_results_go_into_compiled_functions(self):
        value = replicas(shape=LARGE)
        for device, total in zip(jax.devices("cpu"), ALL_REDUCE.reduce("mean", value, value), strict=True):
            step = jax.jit(lambda x: jnp.sum(x) + 1)(total)
            assert step.devices() == {device}
            assert float(step) == LARGE[0] * 255 / 8 + 1

    def test_constants_may_be_reduced_while_jax_traces(self):
        value = [put(np.float32(1)), put(np.float32(2))]
        assert float(jax.jit(lambda x: treefold.all_reduce(value)[0] + x)(4.0)) == 7.0

    def test_shards_are_replicas(self):
        array = spread()
        value = PerReplica([shard.data for shard in array.addressable_shards])
        result = ALL_REDUCE.reduce("sum", value, value)
        assert [float(total[0]) for total in result] == [255.0] * NUM_DEVICES

    def test_callbacks_get_jax_arrays(self):
        """An accumulation_fn is given JAX arrays, may use JAX on them, and cannot change them by donation."""
        value = replicas(3, LARGE)
        double_first = jax.jit(lambda x, *rest: 2 * x + sum(rest), donate_argnums=0)
        ops = ReductionToOneDevice(accumulation_fn=lambda arrays: double_first(*arrays))
        assert float(ops.reduce("sum", value, "cpu:2")[0][5]) == 8.0
        assert [float(array[5]) for array in value] == [1.0, 2.0, 4.0]

    def test_values_are_broadcast_and_gathered(self):
        copies = ONE_DEVICE.broadcast(put(np.ones(3, ml_dtypes.float8_e4m3fn)), ["cpu:4", "cpu:1"])
        assert [copy.devices() for copy in copies] == [{jax.devices("cpu")[k]} for k in (4, 1)]
        assert copies[0].dtype == ml_dtypes.float8_e4m3fn
        rows = PerReplica([put(np.full((2, r), 2.0**r), r) for r in (1, 2)])
        gathered = ONE_DEVICE.gather(rows, "cpu:3", axis=1)[0]
        assert np.array_equal(gathered, [[2.0, 4.0, 4.0]] * 2)
        assert gathered.devices() == {jax.devices("cpu")[3]}

    def test_rows_are_reduced(self):
        parts = [IndexedSlices(put(np.full((1, 2), 2.0**r), r), put(np.array([r], "int32"), r), (4, 2)) for r in (0, 1)]
        value = PerReplica(parts)
        result = ALL_REDUCE.reduce("sum", value, value)
        assert np.array_equal(result[1].values, [[1.0, 1.0], [2.0, 2.0]])
        assert np.array_equal(result[1].indices, [0, 1])


class Impostor(jax.Array):
    """Says whatever it likes."""

    shape, dtype = (3,), np.dtype("float32")

    def devices(self):
        return set(jax.devices("cpu")[:1])

    def __array__(self, *_args, **_kinds):
        return np.full(3, 666.0)


class Pretender:
    """Says that it is of JAX's class."""

    __class__ = property(lambda _: type(jnp.zeros(3)))
    shape, dtype = (), np.dtype("float64")


class TestRefusals:
    def test_of_arrays_on_several_devices(self):
        advice = (
            "treefold takes arrays on one device each: pass "
            "PerReplica([shard.data for shard in array.addressable_shards]), or a copy on one device."
        )
        array = spread()
        assert refused(lambda: treefold.all_reduce([array])) == f"Replica 0 has a JAX array on 8 devices. {advice}"
        assert refused(lambda: treefold.reduce([{"w": array}], to="cpu:0")) == (
            f"Replica 0 has a JAX array on 8 devices at ['w']. {advice}"
        )

    def test_of_tracers(self):
        said = []

        def step(x):
            said.append(refused(lambda: treefold.reduce([x, x], to="cpu:0")))
            return x

        for transform in (jax.jit, jax.grad, jax.vmap):
            transform(step)(jnp.ones(()) if transform is not jax.vmap else jnp.ones(2))
        assert set(said) == {
            "Replica 0 has a JAX tracer, which stands for an array without being one. In one process treefold runs "
            "outside jit, grad and vmap: call it on their results, or use jax.lax.psum inside. Calls of a group may "
            "stand in jit."
        }

    def test_of_deleted_arrays(self):
        arrays = [put(np.ones(3)), put(np.ones(3))]
        for _ in range(3):
            treefold.reduce(arrays, to="cpu:0")
        arrays[1].delete()
        assert refused(lambda: treefold.reduce(arrays, to="cpu:0")) == (
            "Replica 1 has a JAX array that was deleted or donated. "
            "Pass the result that took its memory, or do not donate it."
        )

    def test_of_keys(self):
        assert refused(lambda: treefold.reduce([jax.random.key(0)], to="cpu:0")) == (
            "Replica 0 has a PRNGKeyArray. "
            "treefold takes arrays of numbers: of random keys, pass jax.random.key_data(keys)."
        )

    def test_of_what_derives_from_jax_and_lies(self):
        assert refused(lambda: treefold.reduce([Impostor(), Impostor()], to="cpu:0")).startswith(
            "Replica 0 has a Impostor. "
        )
        good = [put(np.ones(3, "float32"))] * 2
        for _ in range(3):
            treefold.reduce(good, to="cpu:0")
        assert refused(lambda: treefold.reduce([good[0], Impostor()], to="cpu:0")).startswith(
            "Replica 1 has a Impostor. "
        )

    def test_of_what_has_a_shape_and_nothing_else(self):
        pair = PerReplica([Pretender(), Pretender()])
        assert ALL_REDUCE.plan(pair, pair).leaves[0].dtype == "float64"
        sentence = refused(lambda: ALL_REDUCE.reduce("sum", pair, pair))
        assert "which is no array of a loaded framework." in sentence


class TestGlance:
    def test_starts_nothing_of_jax(self):
        code = (
            "import jax, numpy as np, treefold; treefold.all_reduce([np.ones(3)] * 2); "
            "from jax._src import xla_bridge; print(xla_bridge.backends_are_initialized())"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
        assert run.stdout == "False\n"
