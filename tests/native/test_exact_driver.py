"""Exact sums without Python: other compilers and optimisations, another processor, and faults that must be seen."""

import shutil
import subprocess
from pathlib import Path

import pytest
from native_cases import IS_FULL, LEVELS

NATIVE = Path(__file__).parents[2] / "native"
OPTIONS = ("-std=c++17", "-ffp-contract=off")
LONG = pytest.mark.skipif(not IS_FULL, reason="compiles for minutes: `make test-long` runs it")
#: A compiler for another processor, and what runs its programs: Debian's packages, where they are installed.
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"

AVX512 = "-O3 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mf16c -mprefer-vector-width=512"

#: In which file, what becomes what, and which certificate is asked for.
FAULTS = {
    "the flag is ignored": ("window.hpp", "& (inexact | overflow | invalid)) == 0", "& 0) == 0", "flag"),
    "a bound is off by one": ("exact_loops.hpp", "- Form::bits - growth;", "- Form::bits - growth + 1;", "integers"),
    "a tie is taken for a speck": ("exact_rounding.hpp", "error == zero ? sum : moved;", "sum;", "flag"),
    "a carry is lost": ("exact.cpp", "carried = total >> limb_bits;", "carried = 0;", "flag"),
    "subnormals are rounded twice": ("exact_rounding.hpp", "? zero : small;", "? zero : zero;", "flag"),
    "an interval is too short": ("exact_loops.hpp", "const Lanes doubt = size *", "const Lanes doubt = zero *", "none"),
    "a rest is forgotten": ("exact_rounding.hpp", "rest == zero ? zero : some;", "zero;", "none"),
}


def build(folder, *options, compiler="g++", native=NATIVE):
    """Compile the driver with every vector level's code in one file, and return the program."""
    program = folder / "exact_driver"
    sources = [str(native / name) for name in ("tests/exact_driver.cpp", "exact.cpp", "whole.cpp", "overflow.cpp")]
    subprocess.run([compiler, *OPTIONS, *options, "-o", str(program), *sources], check=True)  # noqa: S603
    return [str(program)]


def said(program, certificate, rounds):
    done = subprocess.run([*program, certificate, str(rounds)], capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout


@pytest.fixture(scope="module")
def compiler():
    """Return the compiler, of which there is one wherever the core was built."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ here")
    return "g++"


def test_every_certificate_gives_the_bits_of_whole_numbers(compiler, tmp_path):
    """Sums, means and weighted means of any exponents, cancelling, of 1 to 64 contributions."""
    program = build(tmp_path, "-O2", compiler=compiler)
    for certificate in ("flag", "integers", "none"):
        assert said(program, certificate, 4).startswith(f"{certificate}: 0 of ")


def test_the_flag_is_read_in_one_place():
    """A second window could leak, and no test of the first would see it."""
    found = [
        path.name for path in NATIVE.rglob("*.[ch]pp") if "stmxcsr" in path.read_text() or "fpsr" in path.read_text()
    ]
    assert found == ["window.hpp"]


@LONG
@pytest.mark.parametrize("optimisation", ["-O1", "-O2", "-O3", "-O3 -mavx2 -mf16c", AVX512])
@pytest.mark.parametrize("name", ["g++", "clang++"])
def test_compilers_do_not_move_additions_out_of_the_window(name, optimisation, tmp_path):
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name} here")
    if optimisation == AVX512 and "avx512" not in LEVELS:
        pytest.skip("this processor has no AVX-512")
    program = build(tmp_path, *optimisation.split(), compiler=name)
    assert said(program, "flag", 20).startswith("flag: 0 of ")


@LONG
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_seen(compiler, fault, tmp_path):
    file, right, wrong, certificate = FAULTS[fault]
    native = tmp_path / "native"
    shutil.copytree(NATIVE, native)
    text = (native / file).read_text()
    assert right in text
    (native / file).write_text(text.replace(right, wrong))
    found = said(build(tmp_path, "-O2", compiler=compiler, native=native), certificate, 4)
    assert found.endswith(" wrong\n")
    assert not found.startswith(f"{certificate}: 0 of ")


@LONG
@pytest.mark.parametrize("kind", ["P::is_double", "P::is_short", "P::is_weighted", "std::is_same_v<Value, float>"])
def test_a_flag_that_fails_in_loops_of_one_kind_is_not_used(compiler, kind, tmp_path):
    """Each kind of loop is tried before the first fold, and exponents then prove what the flag cannot."""
    native = tmp_path / "native"
    shutil.copytree(NATIVE, native)
    text = (native / "exact_loops.hpp").read_text()
    right = "return adds_exactly(scratch, add);"
    assert right in text
    (native / "exact_loops.hpp").write_text(text.replace(right, f"return adds_exactly(scratch, add) || {kind};"))
    program = build(tmp_path, "-O2", compiler=compiler, native=native)
    assert said(program, "flag", 4).startswith("integers: 0 of ")


@LONG
def test_of_aarch64_in_an_emulator(tmp_path):
    if shutil.which(CROSS) is None or shutil.which(EMULATOR) is None:
        pytest.skip(f"{CROSS} and {EMULATOR} are not both here")
    program = [EMULATOR, "-L", "/usr/aarch64-linux-gnu", *build(tmp_path, "-O2", compiler=CROSS)]
    for certificate in ("flag", "integers", "none"):
        assert said(program, certificate, 2).startswith(f"{certificate}: 0 of ")
