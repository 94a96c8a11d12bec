import math
import re

import pytest

from treefold.planners.method import one_array
from treefold.planners.star import star
from treefold.planners.two_level import two_level
from treefold.topology import known_topology
from treefold.topology.cost import simulate
from treefold.topology.planning.compare import Comparison, SizeTable, choose, joined_rows, size_text
from treefold.topology.planning.ring import pack_rings

SIZES = [2**12, 3 * 2**12, 2**15, 2**17, 300_000, 2**21, 2**24, 2**28, 2**32]


def method_for(table, nbytes):
    return next(row.method for row in table.rows if nbytes <= row.up_to_bytes)


class TestSizeTable:
    def test_serves_up_to_and_including_its_sizes(self):
        comparison = Comparison(known_topology("ring:5"))
        rows = choose(comparison).rows
        assert [comparison.best(int(row.up_to_bytes)) for row in rows[:-1]] == [row.method for row in rows[:-1]]
        assert len(rows) > 1
        assert rows[-1].up_to_bytes == math.inf

    def test_joins_neighbours_of_one_method(self):
        borders = [(1, "oneshot"), (2, "oneshot"), (4, "trees"), (8, "trees")]
        assert str(SizeTable(joined_rows(borders), ("", ""))) == "oneshot:2:trees:inf"

    @pytest.mark.parametrize(
        ("nbytes", "text"), [(1, "1"), (1023, "1023"), (1024, "1k"), (2**20, "1M"), (3 * 2**29, "1536M")]
    )
    def test_writes_sizes_exactly(self, nbytes, text):
        assert size_text(nbytes) == text


class TestChoose:
    @pytest.mark.parametrize("name", ["dgx1_v100", "p3_8xlarge", "dgx_a100", "pcie3_8gpu", "a100_pcie_8gpu", "ring:5"])
    def test_is_never_slower_than_simpler_plans(self, name):
        """Than ReductionToOneDevice or rings by more than 2 %, than two levels at all, from 4 KiB to 4 GiB."""
        machine = known_topology(name)
        comparison, work, rings = Comparison(machine), one_array(machine.devices), pack_rings(machine)
        table = choose(comparison)
        movements = {method: comparison.movement(method) for method in {row.method for row in table.rows}}
        for nbytes in SIZES:
            mine = simulate(movements[method_for(table, nbytes)], machine, nbytes).duration_s
            assert mine <= simulate(star("gpu:0").movement(work), machine, nbytes).duration_s * 1.02
            assert mine <= simulate(two_level().movement(work), machine, nbytes).duration_s
            assert mine <= rings.predict_s(nbytes) * 1.02

    def test_takes_rings_where_they_are_quickest(self):
        """On a whole DGX-1V they reach the bound that trees reach, and their chunks are in flight sooner."""
        comparison = Comparison(known_topology("dgx1_v100"))
        table = choose(comparison)
        assert table.rows[-1].method == "rings"
        assert "rings, every device passes on to the next, around rings that share no capacity; " in table.reasons[-1]
        assert comparison.methods["rings"].words == "6 rings packed into the links of the topology"

    def test_is_not_changed_by_what_all_methods_pay(self):
        assert str(choose(Comparison(known_topology("dgx_a100")))) == "oneshot:32k:twoshot:inf"

    def test_gives_a_reason_for_every_row(self):
        choice = choose(Comparison(known_topology("dgx_a100")))
        assert len(choice.reasons) == len(choice.rows) >= 2
        assert choice.reasons[0].startswith("Up to ")
        assert "oneshot, one copy after none" in choice.reasons[0]
        assert choice.reasons[-1].startswith("Above ")
        assert all("µs" in reason for reason in choice.reasons)

    def test_compares_each_method_with_the_next_best(self):
        comparison = Comparison(known_topology("ring:5"))
        for reason, row in zip(choose(comparison).reasons, choose(comparison).rows, strict=True):
            size = max(size for size in comparison.seconds if size <= row.up_to_bytes)
            mine, (others_s, other) = (
                comparison.seconds[size][row.method],
                min((seconds, name) for name, seconds in comparison.seconds[size].items() if name != row.method),
            )
            times = rf"; {mine * 1e6:.4g} µs at \S+B, {re.escape(other)} {others_s * 1e6:.4g} µs\.$"
            assert re.search(times, reason)

    def test_needs_no_table_for_one_device(self):
        choice = choose(Comparison(known_topology("dgx1_v100").restricted(["gpu:3"])))
        assert (str(choice), choice.reasons) == ("star:inf", ("There is one device: nothing travels.",))

    def test_chooses_for_some_of_the_devices(self):
        choice = choose(Comparison(known_topology("dgx1_v100").restricted(["gpu:0", "gpu:3"])))
        assert method_for(choice, 4096) == "oneshot"
