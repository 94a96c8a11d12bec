"""Damaged machines: any text is a machine that can be written and read again, or one of our errors in one sentence."""

import json
import time

import pasted_machines as pasted
from attack import cases, drawing, in_shards, replayable
from mutations import draw_mutated

from treefold.errors import TreefoldError
from treefold.topology.parsers import amd_smi, hwloc_xml, nccl_xml, nvidia_smi, parse_topology, plain_json, rocm_smi

PARSERS = (amd_smi, hwloc_xml, nccl_xml, nvidia_smi, plain_json, rocm_smi)
OWN = {parser: sorted(text for text in pasted.ALL.values() if parser.matches(text)) for parser in PARSERS}
FULL = 1_000_000
LONGEST_SENTENCE = 2_000
#: No text of this attack is longer than a page: what takes as long as this would never end on a long one.
LONGEST_S = 20


class TestDamagedMachines:
    @in_shards
    def test_are_machines_or_refused(self, shard):
        for number in cases(FULL, shard):
            with replayable(number):
                parser = PARSERS[number % len(PARSERS)]
                text = draw_mutated(drawing(number), OWN[parser])
                start = time.monotonic()
                check(parser.parse if parser.matches(text) else parse_topology, text)
                assert time.monotonic() - start < LONGEST_S

    def test_were_machines(self):
        assert all(OWN.values())
        assert all(parse_topology(text).devices for text in pasted.ALL.values())


def check(parse, text):
    """Fail unless a text is a machine or refused; no other exception may leave a parser."""
    try:
        topology = parse(text)
    except TreefoldError as error:
        refusal = error
    else:
        again = parse_topology(json.dumps(topology.to_json()))
        assert (again.devices, again.capacities) == (topology.devices, topology.capacities)
        return
    assert isinstance(refusal, ValueError)
    assert 0 < len(str(refusal)) < LONGEST_SENTENCE
    assert "\n" not in str(refusal)
