"""Text → ``Topology``: one module per format, each with ``matches(text)`` and ``parse(text)``.

Parsers never read a file and never start a process. A new format is one module and one name in ``_FORMATS``;
``errors/machines.py`` lists the formats in words.

Text around a tool's output is removed first: Markdown, a shell's prompt above it, and prefixes such as ranks, pods and
times. A prefix is the common beginning of most lines up to a blank or one of ``]>:|)}``, with all digits alike. So
``[1,0]<stdout>:``, ``[pod/worker-0]``, ``2026-01-01T10:00:00.123Z`` and ``worker-1 |`` are recognised without a list.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from types import ModuleType

from treefold.devices import device_type
from treefold.errors import ParseError
from treefold.errors.words import counted, short
from treefold.topology.graph import Topology
from treefold.topology.parsers import amd_smi, amd_smi_json, hwloc_xml, nccl_xml, nvidia_smi, plain_json, rocm_smi
from treefold.topology.parsers.markup import root_tag

MAX_CHARACTERS = 4_000_000
_SHOWN = 200  # characters of an unknown text that its error may show

# What knows more comes first: where a text holds several, the first is read.
_FORMATS: tuple[ModuleType, ...] = (nccl_xml, hwloc_xml, amd_smi, rocm_smi, nvidia_smi)
# Only where there is no other: a prompt or a timestamp in brackets, above a table, starts as JSON does.
_JSON_FORMATS: tuple[ModuleType, ...] = (amd_smi_json, plain_json)
# Quantifiers of all parsers are bounded: no text, however hostile, makes an expression backtrack for long.
_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)?|(?:\x1b\[|\x9b)[0-9;:<=>?]{0,64}[ -/]{0,4}[@-~]|\x1b[ -/]{0,4}[0-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
# Texts that people paste in place of a machine's links: a mark of each, its name, and what it lacks.
_WITHOUT_LINKS = (
    (
        re.compile(r"\bLink \d{1,2}: (?:[\d.]{1,8} GB/s|<inactive>)"),
        "`nvidia-smi nvlink --status`",
        "where NVLinks lead",
    ),
    (re.compile(r"-\[[0-9a-f]{4}(?::[0-9a-f]{2})?\]-[+-]"), "`lspci -tv`", "speeds and NVLinks"),
    (re.compile(r"=== System : max(?:Bw|Width)"), "NCCL_DEBUG=INFO", "which GPU an id is"),
)

_LONGEST = 120  # characters of a prefix
_MOST_LINES = 4096  # that are looked at to find it
_SHARE = 0.5  # of the lines that are not empty have it: a shell's prompt stands before few
_ENDS = "]>:|)}"
_DIGITS = re.compile(r"\d+")
_MARKUP = re.compile(r"^[ \t]*(?:<(?=[A-Za-z!?])|\{(?=\s*\")|\[(?=\s*\[))", re.MULTILINE)
_OWN = re.compile(r"GPU\d|NIC\d|<(?!std)[A-Za-z/!?]|[{\"]|==")  # the tools' own text: a prefix ends before it
_EMPHASIS = re.compile(r"(\*\*|__|`)([^*`\n]{1,120}?)\1")
_RULE = re.compile(r"[\s>|:-]*\|[\s>|:-]*")
_BARS = 2  # A row of a Markdown table has at least two bars; a single one may end a prefix.


def parse_topology(text: str) -> Topology:
    """Return the machine of a text in any known format; of several formats, the one that says most is read.

    Prompts, terminal colours, and prefixes that mpirun and log collectors put before every line are removed.

    Raises:
        ParseError: too long, no known format, wrong in its own, or two machines.
        TopologyError: a machine that does not hold together.

    """
    if len(text) > MAX_CHARACTERS:
        raise ParseError.too_much("characters", len(text), MAX_CHARACTERS)
    text = _CONTROLS.sub("", _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")).lstrip("\ufeff")
    if not text.strip():
        raise ParseError.empty()
    matched = _matched(_FORMATS, tuple(_readings(without_markdown(text))))
    matched = matched or _matched(_JSON_FORMATS, tuple(_readings(text)))[:1]
    if not matched:
        raise _refusal(text)
    return _richest([(module.TOOL, module.parse(reading)) for module, reading in matched])


def _matched(formats: Sequence[ModuleType], readings: Sequence[str]) -> list[tuple[ModuleType, str]]:
    """Return the formats that match, each with the first reading that it matches."""
    found = ((module, next(filter(module.matches, readings), None)) for module in formats)
    return [(module, reading) for module, reading in found if reading is not None]


def _richest(machines: Sequence[tuple[str, Topology]]) -> Topology:
    """Return the machine of the format that says most: formats with GPUs first, then those with all of their links."""
    tool, best = min(machines, key=lambda item: (not _has_gpus(item[1]), item[1].missing is not None))
    others = [other for other in machines if other[1] is not best]
    for name, other in others:
        if _has_gpus(other) and len(other.devices) != len(best.devices):
            raise ParseError.two_machines(
                f"{tool} has {counted(len(best.devices), 'device')}, and {name} {len(other.devices)}"
            )
    if not others:
        return best
    names = " and ".join(name for name, _ in others)
    note = f"The text describes the machine more than once: {tool} is read, which knows more than {names}."
    return dataclasses.replace(best, notes=(*best.notes, note))


def _has_gpus(topology: Topology) -> bool:
    return device_type(topology.devices[0]) == "gpu"


def _readings(text: str) -> Iterator[str]:
    """Yield the text as it is, then without prefixes, without a prompt above XML or JSON, and without escapes."""
    yield text
    bare = without_prefixes(text)
    yield bare
    yield below_prompt(bare)
    if "\\n" in text:
        yield without_markdown(without_escapes(text))


def _refusal(text: str) -> ParseError:
    """Return the error for a text that no parser accepts, which names what people often mistake for a topology."""
    tag = root_tag(text) if text.lstrip().startswith("<") else ""
    if tag in {"graphs", "algo"}:
        return (
            ParseError(
                "This is an NCCL graph file: the rings and trees that NCCL chose, not the machine's links. Dump the "
                "machine with NCCL_TOPO_DUMP_FILE and give that file."
            )
            if tag == "graphs"
            else ParseError("This is an MSCCL algorithm: steps, not a machine. Give the topology that it was made for.")
        )
    if nvidia_smi.has_peer_access(text):
        return ParseError.peer_access("A table of `nvidia-smi topo -p2p`")
    if tag:
        return ParseError(
            f"The XML's root is <{short(tag)[1:-1]}>. NCCL and RCCL topologies start with <system>, hwloc's with "
            f"<topology>; give one of these."
        )
    for mark, what, lacks in _WITHOUT_LINKS:
        if mark.search(text):
            return ParseError(
                f"This output of {what} does not say {lacks}. Paste that of `nvidia-smi topo -m`, or run any program "
                "on NCCL with NCCL_TOPO_DUMP_FILE=machine.xml and give that file."
            )
    if "switchguid=" in text or "caguid=" in text:
        return ParseError.network("This output of ibnetdiscover")
    return ParseError.unrecognised(text.strip()[:_SHOWN])


def without_markdown(text: str) -> str:
    r"""Return a text without Markdown: blanks separate columns, and rules below headers and bold type are removed.

    >>> without_markdown("|  | GPU0 |\n| --- | --- |\n| **GPU0** | `X` |").split()
    ['GPU0', 'GPU0', 'X']
    """
    lines = _EMPHASIS.sub(r"\2", text).split("\n")
    rows = [line.replace("|", " ") if line.count("|") >= _BARS else line for line in lines if not _is_rule(line)]
    return "\n".join(rows)


def _is_rule(line: str) -> bool:
    return line.count("|") >= _BARS and _RULE.fullmatch(line) is not None


def without_escapes(text: str) -> str:
    """Return the text inside a JSON string, in which two characters each stand for line breaks and tabs."""
    return text.replace("\\n", "\n").replace("\\t", "\t").replace('"', " ")


def without_prefixes(text: str) -> str:
    r"""Return a text without the prefix that most of its lines have; other lines stay as they are.

    >>> without_prefixes("[1,0]<stdout>: GPU0 X\n[1,0]<stdout>: GPU1 SYS")
    'GPU0 X\n GPU1 SYS'
    """
    lines = [line for line in text.split("\n", _MOST_LINES)[:_MOST_LINES] if line.strip()]
    found = Counter(shape for line in lines for shape in _shapes(line))
    if not found:
        return text
    most = max(found.values())
    if most < 2 or most < _SHARE * len(lines):  # noqa: PLR2004 - a prefix is what lines have in common
        return text
    shape = max((shape for shape, count in found.items() if count == most), key=len)
    digits_aside = r"\d+".join(map(re.escape, shape.split("0")))
    return re.sub(rf"^[ \t]*{digits_aside}", "", text, flags=re.MULTILINE).lstrip()


def below_prompt(text: str) -> str:
    """Return a text from its first line that begins as XML or JSON does, or the whole text if there is none."""
    found = _MARKUP.search(text)
    return text[found.start() :].lstrip() if found else text


def _shapes(line: str) -> Iterator[str]:
    """Yield the possible prefixes of a line, the shortest first, with every run of digits as 0."""
    line = line.lstrip()[: _LONGEST + 1]
    own = _OWN.search(line)
    for end in range(1, min(own.start() if own else len(line), _LONGEST) + 1):
        is_word = not line[end - 1].isspace() and line[end : end + 1].strip() == ""
        if is_word or line[end - 1] in _ENDS:
            yield _DIGITS.sub("0", line[:end])
