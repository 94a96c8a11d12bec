"""Errors of text and files that should describe a machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from treefold.errors.base import TreefoldError
from treefold.errors.words import printable, short

_FORMATS = (
    "NCCL or RCCL topology XML, hwloc XML, the output of `nvidia-smi topo -m`, `rocm-smi --showtopo` or "
    "`amd-smi topology`, and the plain JSON form"
)
_MANY = 6  # names that a sentence lists


class ParseError(TreefoldError, ValueError):
    """Text that describes no machine, or describes it badly."""

    @classmethod
    def no_file(cls, name: str) -> Self:
        return cls(f"There is no file {short(name)}, and it is no topology itself. Give a path, '-' or the text.")

    @classmethod
    def unreadable_file(cls, name: str, reason: str) -> Self:
        return cls(f"{short(name)} cannot be read: {reason}. Give the path of a file of text.")

    @classmethod
    def not_text(cls, value: object) -> Self:
        return cls(f"load_topology got {short(value)}. It takes a path, '-' for the standard input, or the text.")

    @classmethod
    def unrecognised(cls, start: str) -> Self:
        return cls(f"This is no topology that treefold knows: it starts with {short(start)}. It reads {_FORMATS}.")

    @classmethod
    def empty(cls) -> Self:
        return cls(f"The topology is empty. treefold reads {_FORMATS}.")

    @classmethod
    def too_much(cls, what: str, number: int, allowed: int) -> Self:
        return cls(f"The topology has {number} {what}; at most {allowed} are read. Cut it to one machine or cluster.")

    @classmethod
    def broken(cls, kind: str, problem: str) -> Self:
        return cls(f"The {kind} is broken or cut off: {problem}. Save the whole file and give that.")

    @classmethod
    def forbidden_xml(cls) -> Self:
        return cls("The XML defines entities, which no topology does and which can be bombs. Remove them.")

    @classmethod
    def bad_field(cls, where: str, got: object, allowed: str) -> Self:
        return cls(f"{where} is {short(got)}. It must be {allowed}; correct it.")

    @classmethod
    def truncated(cls, tool: str, problem: str) -> Self:
        return cls(f"The table of {tool} is cut off: {printable(problem)}. Paste the whole output.")

    @classmethod
    def inconsistent(cls, tool: str, problem: str) -> Self:
        shown = printable(problem)
        return cls(f"The table of {tool} contradicts itself: {shown}. Paste the output as the tool printed it.")

    @classmethod
    def unknown_cell(cls, tool: str, where: str, cell: str, known: str) -> Self:
        return cls(
            f"The table of {tool} has {short(cell)} in {printable(where)}, which treefold does not know. Known are "
            f"{known}. Write the links as plain JSON, or give another tool's output."
        )

    @classmethod
    def two_machines(cls, why: str) -> Self:
        return cls(f"The text holds two machines, or one twice: {printable(why)}. Give the text of one.")

    @classmethod
    def without_gpus(cls, what: str, advice: str) -> Self:
        return cls(f"{what} names no GPU. {advice}")

    @classmethod
    def twice(cls, what: str, name: str) -> Self:
        return cls(f"The {what} {short(name)} stands there twice. Each has one of its own; correct the file.")

    @classmethod
    def nvml(cls, reason: str) -> Self:
        return cls(f"NVML does not describe this machine: {reason}. Give its topology as a file instead.")

    @classmethod
    def nccl_graph(cls) -> Self:
        return cls(
            "This is an NCCL graph file: the rings and trees that NCCL chose, not the machine's links. Dump the "
            "machine with NCCL_TOPO_DUMP_FILE and give that file."
        )

    @classmethod
    def msccl(cls) -> Self:
        return cls("This is an MSCCL algorithm: steps, not a machine. Give the topology that it was made for.")

    @classmethod
    def unknown_xml(cls, tag: str) -> Self:
        return cls(
            f"The XML's root is <{short(tag)[1:-1]}>. NCCL and RCCL topologies start with <system>, hwloc's with "
            f"<topology>; give one of these."
        )

    @classmethod
    def peer_access(cls, what: str) -> Self:
        return cls(
            f"{what} says which devices may access each other, not how fast; it can even hide the fastest links. Give "
            f"a topology with links, such as `nvidia-smi topo -m`."
        )

    @classmethod
    def without_links(cls, what: str, lacks: str) -> Self:
        return cls(
            f"This output of {what} does not say {lacks}. Paste that of `nvidia-smi topo -m`, or run any program on "
            "NCCL with NCCL_TOPO_DUMP_FILE=machine.xml and give that file."
        )

    @classmethod
    def mig(cls, tool: str) -> Self:
        return cls(
            f"The table of {tool} has rows of MIG instances, which it gives no links. Paste that of the GPUs, with MIG "
            "turned off, or name a known machine."
        )

    @classmethod
    def without_unit(cls) -> Self:
        return cls(
            'The matrix holds small whole numbers: link counts, weights or GB/s? Say which: {"gb_per_s": matrix} or '
            '{"links": matrix, "gb_per_s_per_link": 25}.'
        )

    @classmethod
    def several(cls, names: Sequence[str]) -> Self:
        shown = ", ".join(short(name)[1:-1] for name in names[:_MANY]) + (", …" if len(names) > _MANY else "")
        return cls(f"This JSON holds {len(names)} matrices ({shown}). load_topology reads one: give the text of one.")

    @classmethod
    def profile(cls) -> Self:
        return cls(
            "This is a TACCL profile: latency and bandwidth per class of link, and no links. Give a topology; "
            "calibration takes measured figures."
        )

    @classmethod
    def network(cls, what: str) -> Self:
        return cls(
            f"{what} lists NICs, hosts and switches of a network and no device that could combine values. Describe the "
            f"hosts with their devices in the plain JSON form, or name a known cluster."
        )

    @classmethod
    def unknown_json(cls, keys: Sequence[str]) -> Self:
        shown = ", ".join(short(key)[1:-1] for key in keys[:_MANY]) or "nothing"
        return cls(
            f'The JSON has {shown}, and no machine. The plain form is {{"devices": [...], "switches": [...], "links": '
            f'[{{"between": ["gpu:0", "gpu:1"], "gb_per_s": 25.0}}, ...]}}; {{"gb_per_s": matrix}} is read as well.'
        )
