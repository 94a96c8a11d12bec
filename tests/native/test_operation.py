"""The operation of TensorFlow's graphs: what it refuses, and that it needs TensorFlow for nothing else."""

import pytest

from treefold.execution import native

if not native.HAS_NATIVE:
    pytest.skip("The native core is not installed.", allow_module_level=True)

from treefold._native import TENSORFLOW_FUNCTIONS, register_fold


def test_names_functions_of_tensorflows_c_interface():
    assert len(set(TENSORFLOW_FUNCTIONS)) == len(TENSORFLOW_FUNCTIONS)
    assert all(name.startswith("TF_") for name in TENSORFLOW_FUNCTIONS)


@pytest.mark.parametrize("count", [0, 1, len(TENSORFLOW_FUNCTIONS) - 1, len(TENSORFLOW_FUNCTIONS) + 1])
def test_takes_the_address_of_each(count):
    with pytest.raises(ValueError, match=r"^register_fold takes the address of each of TENSORFLOW_FUNCTIONS\.$"):
        register_fold([1] * count, 0)


def test_takes_a_vector_level_of_this_machine():
    with pytest.raises(ValueError, match=r"^There is no vector level 99 on this machine\.$"):
        register_fold([1] * len(TENSORFLOW_FUNCTIONS), 99)
