"""Exact sums without Python: other compilers and optimisations, another processor, and faults that must be seen.

One driver folds all contributions at once, the other adds partial sums in random trees.
"""

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
#: The same for partial sums, whose driver asks for no certificate.
PARTIAL_FAULTS = {
    "an addition to one float64 is not exact": ("partial_loops.hpp", "if (any_lost != 0) {", "if (false) {"),
    "an addition to a pair is not exact": ("partial_loops.hpp", "if (any<N>(fails)) {", "if (false) {"),
    "a pair becomes whole numbers without its rests": (
        "partial.cpp",
        "is_pair ? partial.rests",
        "!is_pair ? partial.rests",
    ),
    "a rest is not merged": ("partial.cpp", "if (rests != nullptr) {", "if (false) {"),
    "a carry is lost": ("partial.cpp", "carry = total >> limb_bits;", "carry = 0;"),
    "the sign of zeros is lost": ("partial_loops.hpp", "sum = term == Lanes{} ? before : sum;", ""),
    "a product beyond 53 bits": ("partial.cpp", "factor.number != 0 && loops", "loops"),
}


def build(folder, *options, compiler="g++", native=NATIVE):
    """Compile the driver with every vector level's code in one file, and return the program."""
    return compiled(folder, "exact_driver", *options, compiler=compiler, native=native)


def build_partials(folder, *options, compiler="g++", native=NATIVE):
    """Do the same with the driver of partial sums, and the pool that they use."""
    own = "partial.cpp", "pool.cpp"
    return compiled(folder, "partial_driver", "-pthread", *options, compiler=compiler, native=native, sources=own)


def compiled(folder, name, *options, compiler, native, sources=()):
    program = folder / name
    files = [str(native / file) for file in (f"tests/{name}.cpp", "exact.cpp", "whole.cpp", "overflow.cpp", *sources)]
    subprocess.run([compiler, *OPTIONS, *options, "-o", str(program), *files], check=True)  # noqa: S603
    return [str(program)]


def said(program, *words):
    done = subprocess.run([*program, *map(str, words)], capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout


def seeded(folder, file, right, wrong):
    """Return a copy of the core's sources with a fault."""
    native = folder / "native"
    shutil.copytree(NATIVE, native)
    text = (native / file).read_text()
    assert right in text
    (native / file).write_text(text.replace(right, wrong))
    return native


@pytest.fixture(scope="module")
def compiler():
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ here")
    return "g++"


def test_every_certificate_gives_the_bits_of_whole_numbers(compiler, tmp_path):
    """Sums, means and weighted means of any exponents, cancelling, of 1 to 64 contributions."""
    program = build(tmp_path, "-O2", compiler=compiler)
    for certificate in ("flag", "integers", "none"):
        assert said(program, certificate, 4).startswith(f"{certificate}: 0 of ")


def test_partial_sums_have_the_bits_of_whole_numbers(compiler, tmp_path):
    """In random trees of 1 to 64 contributions, with and without weights; in every mode."""
    found = said(build_partials(tmp_path, "-O2", compiler=compiler), 1)
    assert found.startswith("partial sums: 0 of ")
    assert " 0 blocks became pairs" not in found
    assert " 0 whole numbers" not in found


@LONG
@pytest.mark.parametrize("fault", PARTIAL_FAULTS)
def test_faults_of_partial_sums_are_seen(compiler, fault, tmp_path):
    program = build_partials(tmp_path, "-O2", compiler=compiler, native=seeded(tmp_path, *PARTIAL_FAULTS[fault]))
    found = said(program, 2)
    assert found.startswith("partial sums: ")
    assert not found.startswith("partial sums: 0 of ")


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
    *change, certificate = FAULTS[fault]
    native = seeded(tmp_path, *change)
    found = said(build(tmp_path, "-O2", compiler=compiler, native=native), certificate, 4)
    assert found.endswith(" wrong\n")
    assert not found.startswith(f"{certificate}: 0 of ")


@LONG
@pytest.mark.parametrize("kind", ["P::is_double", "P::is_short", "P::is_weighted", "std::is_same_v<Value, float>"])
def test_a_flag_that_fails_in_loops_of_one_kind_is_not_used(compiler, kind, tmp_path):
    """Each kind of loop is tried before the first fold, and exponents then prove what the flag cannot."""
    right = "return adds_exactly(scratch, add);"
    native = seeded(tmp_path, "exact_loops.hpp", right, f"return adds_exactly(scratch, add) || {kind};")
    program = build(tmp_path, "-O2", compiler=compiler, native=native)
    assert said(program, "flag", 4).startswith("integers: 0 of ")


@LONG
def test_of_aarch64_in_an_emulator(tmp_path):
    if shutil.which(CROSS) is None or shutil.which(EMULATOR) is None:
        pytest.skip(f"{CROSS} and {EMULATOR} are not both here")
    emulator = EMULATOR, "-L", "/usr/aarch64-linux-gnu"
    program = [*emulator, *build(tmp_path, "-O2", compiler=CROSS)]
    for certificate in ("flag", "integers", "none"):
        assert said(program, certificate, 2).startswith(f"{certificate}: 0 of ")
    assert said([*emulator, *build_partials(tmp_path, "-O2", compiler=CROSS)], 2).startswith("partial sums: 0 of ")
