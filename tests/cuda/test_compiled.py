"""The kernels compile for GPUs that are not there, and what comes out keeps the promises that a compiler could break.

Triton's interpreter, in which all other tests run them, takes more than its compiler does.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("compile_kernels.py")
IS_FULL = os.environ.get("TREEFOLD_CASES") == "full"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    environment = {key: text for key, text in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, str(PROGRAM), "full" if IS_FULL else "few"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_op_and_dtype_compiles(kernels):
    elements, ops = ({kernel[kind] for kernel in kernels} for kind in ("element", "op"))
    assert (len(elements), len(ops)) == (13, 5)
    assert len({(kernel["element"], kernel["op"]) for kernel in kernels}) == 60 or not IS_FULL
    assert len({kernel["gpu"] for kernel in kernels}) == 6


def test_arithmetic_is_the_hosts(kernels):
    assert not [kernel for kernel in kernels if kernel["fuses"] or kernel["flushes"]]


def test_memory_is_read_and_written_16_bytes_at_a_time(kernels):
    plain = [kernel for kernel in kernels if kernel["gpu"] == "Hopper" and kernel.get("is_plain", True)]
    wide = [kernel for kernel in plain if kernel["element"] not in {"int8", "uint8", "bool"}]
    assert len(wide) > (40 if IS_FULL else 10)
    assert not [kernel for kernel in wide if not (kernel["reads_16_bytes"] and kernel["writes_16_bytes"])]
