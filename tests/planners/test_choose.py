import math

import pytest

from treefold.cost import simulate
from treefold.cost.model import LAUNCH_S, is_as_good
from treefold.errors import ArgumentError
from treefold.planners.choose import choose, plan_method
from treefold.planners.methods import one_array, plan_star, plan_two_level
from treefold.planners.ring import pack_rings
from treefold.planners.size_table import SizeRow, SizeTable, from_choices, size_text
from treefold.topology import known_topology

SIZES = [2**12, 3 * 2**12, 2**15, 2**17, 300_000, 2**21, 2**24, 2**28, 2**32]


class TestSizeTable:
    @pytest.mark.parametrize(
        "text",
        [
            "oneshot:32k:twoshot:1M:trees#8:inf",
            "trees:inf",
            "star:1:tree:1000:shallow#2:1G:trees#3:5G:rings:6G:vendor:inf",
        ],
    )
    def test_prints_what_it_read(self, text):
        """Both ways."""
        assert str(SizeTable.parse(text)) == text
        assert SizeTable.parse(str(SizeTable.parse(text))) == SizeTable.parse(text)

    def test_takes_fractions_of_units(self):
        """1.5k is 1536 bytes."""
        assert SizeTable.parse("star:1.5k:trees:inf").rows[0] == SizeRow("star", 1536)

    def test_serves_up_to_and_including_its_sizes(self):
        """The border belongs to the method before it."""
        table = SizeTable.parse("oneshot:4k:trees:inf")
        assert [table.method_for(size) for size in (0, 4096, 4096.5, math.inf)] == [
            "oneshot",
            "oneshot",
            "trees",
            "trees",
        ]

    def test_joins_neighbours_of_one_method(self):
        """What is best at the largest size is best beyond."""
        choices = [(1, "oneshot"), (2, "oneshot"), (4, "trees"), (8, "trees")]
        assert str(from_choices(choices)) == "oneshot:2:trees:inf"

    @pytest.mark.parametrize(
        ("nbytes", "text"), [(1, "1"), (1023, "1023"), (1024, "1k"), (2**20, "1M"), (3 * 2**29, "1536M")]
    )
    def test_writes_sizes_exactly(self, nbytes, text):
        """In the largest unit that divides them."""
        assert size_text(nbytes) == text
        assert SizeTable.parse(f"star:{text}:trees:inf").rows[0].up_to_bytes == nbytes

    @pytest.mark.parametrize(
        "text", ["", "oneshot", "oneshot:32k:twoshot", "oneshot:x:trees:inf", "oneshot:-1:trees:inf"]
    )
    def test_refuses_what_is_no_table(self, text):
        """Methods and sizes come in turn."""
        sentence = (
            r"^'.*' is no size table\. Write methods and sizes in turn, the last size inf: "
            r'"oneshot:32k:twoshot:1M:trees#8:inf"\.$'
        )
        with pytest.raises(ArgumentError, match=sentence):
            SizeTable.parse(text)

    @pytest.mark.parametrize(
        ("text", "sizes"),
        [("trees:1k", "1k"), ("star:2k:tree:1k:trees:inf", "2k, 1k, inf"), ("star:inf:trees:inf", "inf, inf")],
    )
    def test_refuses_sizes_that_do_not_grow(self, text, sizes):
        """And a last one that is not infinite."""
        sentence = rf"^The sizes of a size table grow and end with inf; these are {sizes}\.$"
        with pytest.raises(ArgumentError, match=sentence):
            SizeTable.parse(text)

    @pytest.mark.parametrize("method", ["ring", "trees#", "trees#0", "star#2", "shallow", "Trees"])
    def test_refuses_methods_that_it_does_not_know(self, method):
        """With the list of those it does."""
        sentence = (
            rf'^\'{method}\' is no method\. A size table takes "oneshot", "twoshot", "star", "tree", "shallow#", '
            r'"trees", "trees#", "rings" or "vendor", a number behind each #\.$'
        )
        with pytest.raises(ArgumentError, match=sentence):
            SizeTable.parse(f"{method}:inf")


class TestChoose:
    @pytest.mark.parametrize("name", ["dgx1_v100", "p3_8xlarge", "dgx_a100", "pcie3_8gpu", "a100_pcie_8gpu", "ring:5"])
    def test_is_never_slower_than_simpler_plans(self, name):
        """Than ReductionToOneDevice or rings by more than 2 %, than two levels at all, from 4 KiB to 4 GiB."""
        machine = known_topology(name)
        table, work, rings = choose(machine).table, one_array(machine.devices), pack_rings(machine)
        plans = {method: plan_method(method, machine) for method in {row.method for row in table.rows}}
        for nbytes in SIZES:
            mine = simulate(plans[table.method_for(nbytes)], machine, nbytes).duration_s
            assert mine <= simulate(plan_star(work), machine, nbytes).duration_s * 1.02
            assert mine <= simulate(plan_two_level(work), machine, nbytes).duration_s
            assert mine <= rings.predict_s(nbytes) * 1.02

    def test_takes_rings_where_they_are_quickest(self):
        """On a whole DGX-1V they reach the bound that trees reach, and their chunks are in flight sooner."""
        choice = choose(known_topology("dgx1_v100"))
        assert choice.table.rows[-1].method == "rings"
        assert "rings, every device passes on to the next, around rings that share no capacity; " in choice.reasons[-1]
        plan = plan_method("rings", known_topology("dgx1_v100"))
        assert plan.algorithm == "6 rings packed into the links of the topology"

    def test_is_not_changed_by_what_all_methods_pay(self):
        """Methods count as equally good within 1 % of their times without the launch, which is most of a small one."""
        assert is_as_good(LAUNCH_S + 1.009e-6, LAUNCH_S + 1e-6)
        assert not is_as_good(LAUNCH_S + 1.02e-6, LAUNCH_S + 1e-6)
        assert is_as_good(0, 0)
        assert str(choose(known_topology("dgx_a100")).table) == "oneshot:32k:twoshot:inf"

    def test_gives_a_reason_for_every_row(self):
        """In words, with the time it takes and the next best."""
        choice = choose(known_topology("dgx_a100"))
        assert len(choice.reasons) == len(choice.table.rows) >= 2
        assert choice.reasons[0].startswith("Up to ")
        assert "oneshot, one copy after none" in choice.reasons[0]
        assert choice.reasons[-1].startswith("Above ")
        assert all("µs" in reason for reason in choice.reasons)

    def test_leaves_large_values_to_a_switch_that_folds(self):
        """NVLink SHARP is of another class than trees: B/(1 + 1/n) beside B·n/(2·(n − 1))."""
        choice = choose(known_topology("dgx_h100"), in_switch_bytes_per_s=450e9)
        assert choice.table.rows[-1].method == "vendor"
        assert choice.table.method_for(4096) == "oneshot"
        with pytest.raises(
            ArgumentError, match=r"^\"vendor\" is the collective of the vendor's library and no plan\. "
        ):
            plan_method("vendor", known_topology("dgx_h100"))

    def test_needs_no_table_for_one_device(self):
        """Nothing travels."""
        choice = choose(known_topology("dgx1_v100"), ["gpu:3"])
        assert (str(choice.table), choice.reasons) == ("star:inf", ("There is one device: nothing travels.",))

    def test_chooses_for_some_of_the_devices(self):
        """Two of a DGX-1V have one link, and everything is quicker in one shot than in two."""
        choice = choose(known_topology("dgx1_v100"), ["gpu:0", "gpu:3"])
        assert choice.table.method_for(4096) == "oneshot"

    @pytest.mark.parametrize("rate", [0, -1, math.inf, math.nan])
    def test_refuses_a_switch_of_no_rate(self, rate):
        """None means that there is no such switch."""
        sentence = r"^in_switch_bytes_per_s is .*\. It takes a finite number above 0, or None for no such switch\.$"
        with pytest.raises(ArgumentError, match=sentence):
            choose(known_topology("ring:2"), in_switch_bytes_per_s=rate)
