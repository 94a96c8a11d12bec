"""Any text is a machine or one of our errors: no crash, no hang, no memory without bound.

``TREEFOLD_CASES`` is the number of texts of each property; a release runs ``full``.
"""

import json
import os
import subprocess
import sys

import mutations
import pasted_machines as pasted
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treefold.errors import TreefoldError
from treefold.topology.parsers import amd_smi, hwloc_xml, nccl_xml, nvidia_smi, parse_topology, plain_json, rocm_smi

_ASKED = os.environ.get("TREEFOLD_CASES", "60")
CASES = 20_000 if _ASKED == "full" else int(_ASKED) * 5
PARSERS = [amd_smi, hwloc_xml, nccl_xml, nvidia_smi, plain_json, rocm_smi]

many = settings(max_examples=CASES, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


def outcome(parse, text):
    """Return the machine of a text, or the error that refuses it; anything else is the test's failure."""
    try:
        return parse(text)
    except TreefoldError as error:
        return error


def holds(result):
    """Tell whether it is a machine that can be written and read again, or an error of one short sentence or two.

    Its output can be printed: no text makes a terminal do anything but show it.
    """
    if isinstance(result, TreefoldError):
        return isinstance(result, ValueError) and 0 < len(str(result)) < 2000 and str(result).isprintable()
    again = parse_topology(json.dumps(result.to_json()))
    said = [result.name, *result.notes, *result.kinds, *(link.kind for link in result.links), str(result.missing)]
    is_same = again.capacities == result.capacities and again.devices == result.devices
    return is_same and again.missing == result.missing and all(text.isprintable() for text in said)


class TestAnyText:
    @many
    @given(text=mutations.mutated(pasted.ALL.values()))
    def test_that_was_a_machine(self, text):
        assert holds(outcome(parse_topology, text))

    @pytest.mark.parametrize("parser", PARSERS, ids=[parser.__name__.rpartition(".")[2] for parser in PARSERS])
    @settings(many, max_examples=max(CASES // 5, 1))
    @given(data=st.data())
    def test_that_a_parser_takes_for_its_own(self, parser, data):
        own = [text for text in pasted.ALL.values() if parser.matches(text)]
        text = data.draw(mutations.mutated(own))
        assert holds(outcome(parser.parse, text)) if parser.matches(text) else holds(outcome(parse_topology, text))

    @many
    @given(text=st.text())
    def test_at_all(self, text):
        assert holds(outcome(parse_topology, text))

    @many
    @given(
        value=st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.sampled_from(["devices", "links", "between", "gb_per_s", "m", "x"]), inner, max_size=4
                )
            ),
            max_leaves=20,
        )
    )
    def test_that_is_json(self, value):
        assert holds(outcome(parse_topology, json.dumps(value)))


SIZE = 3_900_000  # characters: just under what is read
HOSTILE = {
    "comments without end": "'<!--' * (SIZE // 4)",
    "declarations without end": "'<!' * (SIZE // 2)",
    "open elements": "'<system>' + '<pci>' * (SIZE // 5)",
    "many elements": "'<system><cpu>' + '<pci busid=\"0:0:0.0\"/>' * (SIZE // 22)",
    "many attributes": "'<system ' + ' '.join(f'a{i}=\"\"' for i in range(SIZE // 12)) + '/>'",
    "a long attribute": "'<system><cpu><pci class=\"0x0302\" busid=\"' + 'f' * SIZE + '\"/></cpu></system>'",
    "devices on the hub": '\'<topology><object type="Machine"><object type="Package"/><object type="Package"/>\''
    "+ ''.join(f'<object type=\"PCIDev\" pci_busid=\"0:{i:x}\"/>' for i in range(49_000)) + '</object></topology>'",
    "brackets": "'[' * SIZE",
    "braces": "'{\"devices\":' * (SIZE // 11)",
    "long numbers": "'[' + ','.join(['[' + '9' * 4000 + ']'] * (SIZE // 4004)) + ']'",
    "a full matrix": "'{\"gb_per_s\": [' + ','.join(['[' + ','.join(['7.5'] * 256) + ']'] * 256) + ']}'",
    "line breaks": "'x' + '\\n' * SIZE",
    "blanks": "'x' + ' ' * SIZE + '\\n'",
    "prompts": "'>' * SIZE + '\\n'",
    "escapes": "'\\x1b[' * (SIZE // 2)",
    "one row": "'GPU0 X ' + 'SYS ' * (SIZE // 4) + '\\n'",
    "many rows": "'GPU0 X SYS\\n' * (SIZE // 11)",
    "a table of NVLinks": "''.join(f'GPU{i} ' + ' '.join('X' if i == j else 'NV1' for j in range(256)) + ' 0\\n' "
    "for i in range(256))",
    "a title of blanks": "'=' * 100 + ' A' + ' ' * SIZE + '\\n'",
    "a title of equals": "'=' * SIZE + 'A' + '\\n'",
    "prefixes": "''.join(f'[1,0]<stdout>: {i} | (a) b: x\\n' for i in range(SIZE // 30))",
    "lines of blanks and colons": "': ' * 60 + '\\n' + (': ' * 40 + '\\n') * (SIZE // 81)",
    "columns of NICs": "'GPU0 CPU\\nGPU0 X ' + 'SYS ' * (SIZE // 4 - 9) + '\\n'",
    "glued cells": "'GPU0 X ' + 'NODE' * (SIZE // 4 - 9) + '\\n'",
    "titles": "'= Link Type between two GPUs =\\n' * (SIZE // 31)",
    "tables": "'LINK TYPE TABLE:\\n' * (SIZE // 17)",
}
#: Reads each text in a process of its own, within bounds; all are forked from one that has imported treefold.
READER = """
import os, resource, sys
from treefold import load_topology
SIZE = int(sys.argv[1])
for expression in sys.argv[2:]:
    if os.fork() == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        resource.setrlimit(resource.RLIMIT_AS, (3_000_000_000, 3_000_000_000))
        text = eval(expression) + "\\n"
        try:
            print("a machine of", len(load_topology(text).devices), flush=True)
        except BaseException as error:
            print(type(error).__name__, flush=True)
        os._exit(0)
    status = os.wait()[1]
    if status:
        print("ended with", status, flush=True)
"""


@pytest.fixture(scope="module")
def read():
    """Return what became of each text."""
    command = [sys.executable, "-c", READER, str(SIZE), *HOSTILE.values()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - our own text
    return dict(zip(HOSTILE, done.stdout.splitlines(), strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="the limits of a process are Linux's")
class TestHostileText:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_ends_within_bounds(self, read, name):
        assert read[name].startswith(("ParseError", "TopologyError", "DeviceError", "a machine of"))
