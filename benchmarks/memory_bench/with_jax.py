"""JAX: ``psum`` over one host device per replica, under ``pmap`` and under ``jit(shard_map)``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# Read once, when JAX's CPU platform starts: hence before the import.
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={os.environ['TREEFOLD_BENCH_DEVICES']}"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
from jax.sharding import NamedSharding, PartitionSpec

from treefold.bench.arrays import Array
from treefold.bench.baselines import Baseline, Call
from treefold.errors import PeerError

jax.config.update("jax_enable_x64", val=True)

_OPS = {"sum": jax.lax.psum, "mean": jax.lax.pmean, "min": jax.lax.pmin, "max": jax.lax.pmax}
_AXIS = "replica"


class JaxBaseline(Baseline):
    """All replicas in one process, each on a device of its own. In place, the inputs are donated."""

    def load(self, *, is_zero: bool) -> None:
        """Drop the contributions: each form gets its own."""
        mesh = jax.make_mesh((self.work.devices,), (_AXIS,))
        self._spec = PartitionSpec(_AXIS)
        self._sharding = NamedSharding(mesh, self._spec)
        self._is_zero = is_zero
        self._inputs: list[Any] = []
        self._form = ""

    def start(self, form: str) -> None:
        """Put new contributions on the devices, because results of donated ones are placed differently."""
        if form != self._form:
            self._inputs.clear()  # two sets of a large model's may be more than the memory holds
            self._inputs = [self._placed(column) for column in self.new_inputs(is_zero=self._is_zero)]
            self._form = form

    def _placed(self, column: list[Array]) -> Any:
        shards = [jax.device_put(array[None], device) for array, device in zip(column, jax.devices(), strict=True)]
        shape = (len(column), *column[0].shape)
        return jax.make_array_from_single_device_arrays(shape, self._sharding, shards)

    def forms(self) -> Mapping[str, Call]:
        """Return both forms; a batch is one call on a list."""
        if self.work.op not in _OPS:
            raise PeerError.lacks("JAX", f"collective for {self.work.op}")
        if self.work.placement == "shared":
            raise PeerError("devices share no result")
        operation = _OPS[self.work.op]
        donated = (0,) if self.work.placement == "in-place" else ()

        def reduce(arrays: list[Any]) -> Any:
            return operation(arrays, _AXIS)

        mapped = jax.shard_map(reduce, mesh=self._sharding.mesh, in_specs=self._spec, out_specs=self._spec)
        functions: dict[str, Any] = {
            f"pmap({operation.__name__})": jax.pmap(reduce, axis_name=_AXIS, donate_argnums=donated),
            f"jit(shard_map({operation.__name__}))": jax.jit(mapped, donate_argnums=donated),
        }
        return {form: self._call(function) for form, function in functions.items()}

    def _call(self, function: Callable[[list[Any]], Any]) -> Call:
        def call() -> Any:
            results: Any = jax.block_until_ready(function(self._inputs))
            if self.work.placement == "in-place":
                self._inputs = results
            return results

        return call

    def read(self, result: Any) -> list[list[Array]]:
        """Return each device's shard."""
        return [[np.asarray(shard.data)[0] for shard in array.addressable_shards] for array in result]


make_baseline = JaxBaseline
