"""Devices as JAX names them, and as objects of its own."""

import jax
import numpy as np
import pytest

from treefold import PerReplica, ReductionToOneDevice
from treefold.errors import DeviceError

# Before JAX's platforms start, as in test_jax.py.
jax.config.update("jax_num_cpu_devices", 8)

OPS = ReductionToOneDevice()


@pytest.fixture
def value():
    return PerReplica([jax.device_put(np.full(3, 2.0**r, "float32"), jax.devices("cpu")[r]) for r in range(2)])


class TestDevices:
    def test_that_jax_has_not_are_refused(self, value):
        sentence = (
            r"^JAX has no device cpu:8 here\. It has cpu:0, cpu:1, cpu:2, cpu:3, cpu:4 … \(8 devices\)\. Name one of "
            r"these; nothing is placed elsewhere for you\.$"
        )
        with pytest.raises(DeviceError, match=sentence):
            OPS.reduce("sum", value, "cpu:8")

    def test_may_be_given_as_jax_has_them(self, value):
        devices = jax.devices("cpu")
        assert OPS.reduce("sum", value, devices[5]).devices == ("cpu:5",)
        assert OPS.reduce("sum", value, [devices[1], "cpu:3"]).devices == ("cpu:1", "cpu:3")
