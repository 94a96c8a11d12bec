import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
from written_runs import rows_of_csv, run_of_json

from memory_bench.figures import make_entries, make_figures
from memory_bench.page import make_page
from treefold.bench.arrays import Arrays, check_call, count_wrong, fill, make_runner, new_input, pattern
from treefold.bench.clock import Pace, Spread, calls_per_round, clocked, interleave, spread_of_ratios
from treefold.bench.limit import best_of, find_fastest, make_loops
from treefold.bench.results import BaselineRow, Run, WorkRow, rows_to_csv
from treefold.bench.sweep import Progress, Variant, measure
from treefold.bench.work import MODELS, PLACEMENTS, Work, shapes_of_size
from treefold.cli.sizes import parse_size, sweep_sizes
from treefold.dtypes import INTEGERS
from treefold.errors import BenchError
from treefold.errors.words import bytes_in_words
from treefold.execution import native

SPREAD = Spread(0.001, 0.0009, 0.0012, 0.002)
RIVALS = (
    BaselineRow("torch", "add(out=)", SPREAD, Spread(2.0, 1.5, 2.5, 3.0), 0),
    BaselineRow("jax", "", note="not installed"),
    BaselineRow("treefold", "into new results", SPREAD, Spread(1.1, 1.0, 1.2, 1.3), 0),
)
ROW = WorkRow("1 MiB", 1 << 20, 1 << 18, SPREAD, limit_s=SPREAD, of_limit=Spread(0.9, 0.8, 0.95, 1.0), rivals=RIVALS)
RUN = Run("2026-01-02", {"cores": "2"}, {"numpy": "2"}, (ROW, dataclasses.replace(ROW, rivals=())), SPREAD, "bench")


def work(**changes):
    """Return work of three tensors, small, with lengths that no vector width divides."""
    return dataclasses.replace(Work("w", ((3, 5), (1001,), ())), **changes)


class TestSizes:
    @pytest.mark.parametrize(
        ("text", "nbytes"), [("4096", 4096), ("4K", 4096), ("256M", 1 << 28), ("1g", 1 << 30), ("4KiB", 4096)]
    )
    def test_reads_what_nccl_tests_reads(self, text, nbytes):
        assert parse_size(text) == nbytes

    @pytest.mark.parametrize("text", ["", "0", "-4K", "4.5M", "K", "4T", "four", "0K", "9" * 5000])
    def test_refuses_other_text_in_one_sentence(self, text):
        with pytest.raises(
            BenchError, match=r"^-b got '.{0,60}\. It takes a number of bytes of at least 1, with K, M or G"
        ):
            parse_size(text, "-b")

    def test_names_sizes_back(self):
        assert [bytes_in_words(n) for n in (1, 4096, 1 << 28, 1 << 30)] == ["1 B", "4 KiB", "256 MiB", "1 GiB"]

    def test_sweeps_up_to_the_end(self):
        assert sweep_sizes(4096, 65536, 4) == [4096, 16384, 65536]
        assert sweep_sizes(4096, 65535, 4) == [4096, 16384]


class TestModels:
    @pytest.mark.parametrize(
        ("name", "tensors", "parameters"),
        [
            ("resnet50", 161, 25_557_032),
            ("vgg16", 32, 138_357_544),
            ("bert-base", 199, 109_482_240),
            ("bert-large", 391, 335_141_888),
            ("gpt2", 148, 124_439_808),
            ("vit-b-16", 152, 86_567_656),
        ],
    )
    def test_tables_add_up_to_the_published_totals(self, name, tensors, parameters):
        shapes = MODELS[name]()
        assert (len(shapes), sum(map(math.prod, shapes))) == (tensors, parameters)


class TestSchema:
    def test_json_round_trip(self):
        assert run_of_json(RUN.to_json()) == RUN

    def test_csv_round_trip(self):
        assert rows_of_csv(rows_to_csv(RUN.rows)) == RUN.rows

    @pytest.mark.parametrize(("devices", "factor"), [(1, 0), (2, 1), (8, 1.75)])
    def test_busbw_is_algbw_times_two_n_minus_one_over_n(self, devices, factor):
        """The field's formula for all-reduce."""
        row = WorkRow("x", nbytes=5_000_000, count=1, time_s=SPREAD, devices=devices)
        assert row.algbw_gb_per_s == 5.0
        assert row.busbw_gb_per_s == 5.0 * factor


class TestClock:
    def test_contestants_take_turns_in_alternating_order(self):
        order = []
        runners = {name: lambda calls, name=name: (order.append(name), [1.0] * calls)[1] for name in "ab"}
        times = interleave(runners, Pace(rounds=2, warmup=1, calls=3))
        assert order == ["b", "a", "a", "b", "b", "a"]
        assert times == {"a": ((1.0,) * 3,) * 2, "b": ((1.0,) * 3,) * 2}

    def test_every_call_is_timed_by_the_clock_it_is_given(self):
        readings = iter([1.0, 3.0, 10.0, 15.0])
        assert clocked(lambda: None, lambda: next(readings))(2) == [2.0, 5.0]

    def test_what_comes_before_a_call_is_not_timed(self):
        now, called = itertools.count(), []
        clock = functools.partial(next, now)
        runner = clocked(lambda: called.append("call"), clock, before=lambda: called.append(f"before {clock()}"))
        assert runner(2) == [1, 1]
        assert called == ["before 0", "call", "before 3", "call"]

    def test_ratios_are_taken_within_rounds(self):
        assert spread_of_ratios(((2.0,), (20.0,), (2.0,)), ((1.0,), (10.0,), (1.0,))) == Spread(2.0, 2.0, 2.0, 2.0)

    def test_short_calls_come_in_bursts(self):
        assert (calls_per_round(1.0), calls_per_round(0.001), calls_per_round(0.0)) == (1, 4, 200)


class TestContents:
    @pytest.mark.parametrize("op", ["sum", "mean", "min", "max", "product"])
    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8", "uint32", "int64"])
    @pytest.mark.parametrize("devices", [1, 3, 8, 20])
    def test_losing_any_replica_is_seen(self, op, dtype, devices):
        if op in {"sum", "mean"} and devices > 8 and dtype in {"float16", "bfloat16", "int8"}:
            devices = 7  # powers of two repeat beyond what the dtype holds
        whole = work(op=op, dtype=dtype, devices=devices)
        wide = [pattern(whole, r, 0).astype("float64") for r in range(devices)]
        fold = {"sum": np.sum, "mean": np.sum, "min": np.min, "max": np.max, "product": np.prod}[op]
        full = fold(wide, axis=0)
        for lost in range(devices if devices > 1 else 0):
            assert (fold(wide[:lost] + wide[lost + 1 :], axis=0) != full).any()

    @pytest.mark.parametrize("position", [0, 500, 32768, 100_002])
    def test_one_flipped_element_is_seen(self, position):
        one = work(shapes=((100_003,),))
        result = np.empty(100_003, np.float32)
        fill(result, pattern(one, 0, 0) * np.float32(255))
        assert count_wrong(one, 0, result) == 0
        result.view(np.uint32)[position] ^= 1
        assert count_wrong(one, 0, result) == 1

    def test_another_shape_or_dtype_is_all_wrong(self):
        assert count_wrong(work(), 0, np.zeros((5, 3), np.float32)) == 15
        assert count_wrong(work(), 0, np.zeros((3, 5), np.float64)) == 15

    def test_zeros_are_written(self):
        """Pages that were never touched would be read from one page of the system's."""
        assert not new_input(work(), 3, 1, is_zero=True).any()


class TestTimedContents:
    """Calls are timed on values like gradients; in place these are written before each call."""

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "uint8", "int64", "complex64"])
    def test_are_like_gradients(self, dtype):
        arrays = Arrays(work(dtype=dtype, shapes=((50_000,),)))
        arrays.load_gradients()
        (column,) = arrays.sources
        for array, other in itertools.pairwise(column):
            assert (array != other).any()
            assert 0.28 < np.mean(array.astype(complex) == 0) < (1 if dtype in INTEGERS else 0.32)

    def test_are_written_before_each_call_in_place(self):
        one = work(shapes=((1 << 18,),))  # 8 MiB in all
        arrays = Arrays(one)
        runner = make_runner(arrays, one)
        totals = [runner(1) and arrays.sources[0][0].tobytes() for _ in range(2)]
        assert totals[0] == totals[1]
        assert any(arrays.sources[0][0])

    def test_stay_zeros_in_small_arrays_in_place(self):
        one = work(shapes=((1 << 17,),))
        arrays = Arrays(one)
        arrays.clear()
        make_runner(arrays, one)(2)
        assert not any(arrays.sources[0][0])


class TestMeasure:
    @pytest.mark.parametrize("placement", PLACEMENTS)
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "complex64"])
    @pytest.mark.parametrize("op", ["sum", "mean"])
    def test_every_placement_is_right_in_every_element(self, placement, dtype, op):
        one = work(placement=placement, dtype=dtype, op=op)
        assert check_call(Arrays(one), one) == 0

    def test_a_row_says_what_was_done(self):
        one = work(placement="out-of-place", devices=3, threads=1)
        ticks = []
        variant = Variant("into new results", dataclasses.replace(one, placement="new"))
        row = measure(one, Pace(2, 1), variants=[variant], progress=Progress(ticks.append, lambda: ticks.append("")))
        assert (row.name, row.nbytes, row.tensors, row.placement, row.wrong) == ("w", 4068, 3, "out-of-place", 0)
        assert (row.of_limit is not None) == native.HAS_NATIVE
        assert [(rival.form, rival.wrong) for rival in row.rivals] == [("into new results", 0)]
        assert ticks[0] == "w float32"

    def test_there_is_no_limit_for_results_of_another_size(self):
        """The MEAN of int8 is float32: no traffic of bytes stands for it."""
        one = work(dtype="int8", op="mean")
        assert make_loops(Arrays(one), one) == {}

    def test_the_limit_is_the_fastest_loop_s(self):
        one = work(devices=3, threads=2)
        row = measure(one, Pace(2, 1), progress=Progress())
        assert row.limit_by in {"", *make_loops(Arrays(one), one)}
        assert bool(row.limit_by) == native.HAS_NATIVE

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"op": "xor"}, r"^--op got 'xor'\. It takes one of sum, mean, min, max, product\.$"),
            ({"dtype": "float8"}, r"^--dtype got 'float8'\. It takes one of float16, .*complex128\.$"),
            ({"devices": 0}, r"^--devices got 0\. It takes a whole number of at least 1\.$"),
            (
                {"op": "mean", "dtype": "int8"},
                r"^--op mean of int8 is a float, which does not fit in place; give --new",
            ),
            ({"op": "min", "dtype": "complex64"}, r"^--op min has no meaning for --dtype complex64\.$"),
        ],
    )
    def test_refuses_what_is_no_work(self, changes, sentence):
        with pytest.raises(BenchError, match=sentence):
            work(**changes).check()

    def test_refuses_a_size_that_holds_no_element(self):
        with pytest.raises(BenchError, match=r"^-b got 4 bytes\. One float64 takes 8\.$"):
            shapes_of_size(4, "float64")

    def test_refuses_what_does_not_fit(self):
        huge = Work("huge", shapes_of_size(1 << 50, "float32"))
        with pytest.raises(BenchError, match=r"^huge needs .* GB and .* GB are free;"):
            measure(huge, Pace(1, 0), progress=Progress())


@pytest.mark.skipif(not native.HAS_NATIVE, reason="needs the native core")
class TestLimit:
    @pytest.mark.parametrize("placement", PLACEMENTS)
    @pytest.mark.parametrize("devices", [1, 2, 3])
    def test_every_loop_reads_all_and_writes_all(self, placement, devices):
        one = work(placement=placement, devices=devices, shapes=((1000,), (3, 5)))
        native.set_num_threads(2)
        names = list(make_loops(Arrays(one), one))
        assert len(names) == len(set(names)) >= 4
        for name in names:
            arrays = Arrays(one)
            targets = arrays.sources if placement == "in-place" else arrays.given()
            for column in targets:
                for target in column:
                    target.view(np.uint8)[...] = 0xAA
            for column in arrays.sources:
                for replica, array in enumerate(column):
                    array.view(np.uint8)[...] = 1 << replica
            make_loops(arrays, one)[name]()
            allowed = {(1 << devices) - 1} if name.startswith("as folded") else {1 << r for r in range(devices)}
            for column in targets:
                for result in column[: one.num_results]:
                    assert set(result.view(np.uint8).flat) <= allowed, name

    def test_is_looked_for_among_the_loops_with_the_best_rounds(self):
        """Whoever is quick undisturbed: a loop's slow rounds do not count against it."""
        seconds = {"steady": [3.0], "best": [9.0, 9.0, 2.0], "worst": [4.0]}
        rounds = {name: itertools.cycle(times) for name, times in seconds.items()}
        runners = {name: lambda calls, name=name: [next(rounds[name])] * calls for name in rounds}
        assert find_fastest(runners, 2) == ["best", "steady"]

    def test_is_the_fastest_loop_of_every_round(self):
        times = {"one": ((1.0, 9.0, 1.0), (5.0,), (1.0,)), "other": ((2.0,), (4.0,), (2.0,))}
        assert best_of(times) == ("one", ((1.0, 9.0, 1.0), (4.0,), (1.0,)))


class TestPage:
    def test_figures_without_rows_are_not_measured_and_said_to_be(self):
        page = make_page(RUN, {}, make_figures(), picture="x.png", sweep=[])
        end = page.partition("## Not measured")[2]
        for figure in make_figures():
            assert f"- {figure.work}: not measured" in end

    def test_every_figure_finds_its_row(self):
        keys = {entry.key: entry for entry in make_entries(Pace(3, 1))}
        variants = {
            key: [BaselineRow("treefold", v.form, SPREAD, SPREAD) for v in e.variants] for key, e in keys.items()
        }
        peers = {key: [BaselineRow(name, "form", SPREAD, SPREAD) for name in e.libraries] for key, e in keys.items()}
        forms = [
            BaselineRow("tensorflow", f, SPREAD, SPREAD) for f in ("eager", "in a function", "packed hierarchical copy")
        ]
        rows = {
            key: dataclasses.replace(
                ROW, nbytes=e.work.nbytes, devices=e.work.devices, rivals=(*variants[key], *peers[key], *forms)
            )
            for key, e in keys.items()
        }
        for figure in make_figures():
            assert figure.judge(rows).is_reached is not None, figure.work

    def test_reached_and_missed_are_told_apart(self):
        figure = make_figures()[0]
        key = f"in-place {1 << 26}"
        assert figure.judge({key: ROW}).is_reached
        worse = dataclasses.replace(ROW, of_limit=Spread(0.89, 0.8, 0.9, 1.0))
        assert figure.judge({key: worse}).is_reached is False
        assert bytes_in_words(1 << 26) in figure.work
