"""Sums over whole arrays without Python: other compilers, another processor, and faults that must be seen."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from exact_oracle import KINDS, WIDTHS
from native_cases import IS_FULL, LEVELS
from test_exact_driver import AVX512, CROSS, EMULATOR, OPTIONS
from test_whole_sums import drawn, right_sum

NATIVE = Path(__file__).parents[2] / "native"
LONG = pytest.mark.skipif(not IS_FULL, reason="compiles for minutes: `make test-long` runs it")
#: In which file, what becomes what, and which certificate is asked for.
FAULTS = {
    "what is left is ignored": ("whole_sums.hpp", "lefts[lane] << 1 |", "", "flag"),
    "numbers may be larger than bins": ("whole_sums.hpp", "| moves[lane] >> 52", "", "flag"),
    "bins are never emptied": ("whole_sums.hpp", "if (room_ < length / step) empty(total);", "", "flag"),
    "the last bins are forgotten": ("whole_sums.hpp", "if constexpr (P::has_bins) bins.empty(total);", "", "flag"),
    "significands overflow": ("whole_sums.hpp", "? 1024 : 256;", "? 1 << 20 : 1 << 20;", "none"),
    "a sign is lost": ("whole_sums.hpp", "(size ^ sign) - sign", "size", "none"),
    "a carry is lost": ("superaccumulator.hpp", "carried = (word - low)", "carried = 0 * (word - low)", "flag"),
}


def build(folder, *options, compiler="g++", native=NATIVE):
    program = folder / "whole_sums_driver"
    sources = [str(native / name) for name in ("tests/whole_sums_driver.cpp", "exact.cpp", "whole.cpp", "overflow.cpp")]
    subprocess.run([compiler, *OPTIONS, *options, "-o", str(program), *sources], check=True)  # noqa: S603
    return [str(program)]


@pytest.fixture(scope="module")
def cases():
    """Return what the program reads, and what it is to say."""
    rng, given, right = np.random.default_rng(6), [], []
    arrays = []
    for dtype in ("float32", "float64"):
        width, precision = WIDTHS[dtype]
        word = f"u{width // 8}"
        arrays += [(dtype, drawn(rng, kind, dtype, 2500, factors)) for kind in KINDS for factors in (1, 2)]
        largest = (((1 << (width - precision)) - 1) << (precision - 1)) - 1
        arrays += [(dtype, [np.full(300_000, largest, word)] * factors) for factors in (1, 2)]
    # What the first bin takes cancels, and the second one gets more and more.
    rest = 2.0**-40 - 2.0**-52
    arrays.append(("float64", [np.tile(np.repeat([1 + rest, rest - 1], 64), 3000).view(np.uint64)]))
    for dtype, columns in arrays:
        given.append(np.array([dtype == "float64", len(columns), len(columns[0])], np.uint64).tobytes())
        given += [column.tobytes() for column in columns]
        total, *found = right_sum(dtype, columns)
        right.append(f"{total % (1 << 136 * 32):0{136 * 8}x} {''.join(str(int(one)) for one in found)}")
    return b"".join(given), right


def said(program, certificate, given):
    done = subprocess.run([*program, certificate], input=given, capture_output=True, check=True)  # noqa: S603
    return done.stdout.decode().splitlines()


@pytest.fixture(scope="module")
def compiler():
    """Return the compiler, of which there is one wherever the core was built."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ here")
    return "g++"


def test_gives_whole_numbers(compiler, cases, tmp_path):
    program, (given, right) = build(tmp_path, "-O2", compiler=compiler), cases
    assert said(program, "flag", given) == said(program, "none", given) == right


@LONG
@pytest.mark.parametrize("optimisation", ["-O1", "-O3", "-O3 -mavx2 -mf16c", AVX512])
@pytest.mark.parametrize("name", ["g++", "clang++"])
def test_compilers_keep_every_rounding(name, optimisation, cases, tmp_path):
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name} here")
    if optimisation == AVX512 and "avx512" not in LEVELS:
        pytest.skip("this processor has no AVX-512")
    given, right = cases
    assert said(build(tmp_path, *optimisation.split(), compiler=name), "flag", given) == right


@LONG
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_seen(compiler, fault, cases, tmp_path):
    (file, before, after, certificate), native, (given, right) = FAULTS[fault], tmp_path / "native", cases
    shutil.copytree(NATIVE, native)
    text = (native / file).read_text()
    assert text.count(before) == 1
    (native / file).write_text(text.replace(before, after))
    assert said(build(tmp_path, "-O2", compiler=compiler, native=native), certificate, given) != right


@LONG
def test_of_aarch64_in_an_emulator(cases, tmp_path):
    if shutil.which(CROSS) is None or shutil.which(EMULATOR) is None:
        pytest.skip("needs a compiler for aarch64, and qemu-user")
    given, right = cases
    program = build(tmp_path, "-O2", "-static", compiler=CROSS)
    assert said([EMULATOR, *program], "flag", given) == right
