"""Pickles, read as data: no name is imported, nothing is called, no object of a class is built.

A call that a pickle requests becomes a ``PickledCall`` with its arguments, and a name that it looks up a ``Name``.
Python's own unpickler, even one that finds no class, lets a few bytes allocate any amount of memory. Here memory is
bounded by the bytes of the pickle.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Name:
    """A name that a pickle would look up."""

    module: str
    name: str

    def __str__(self) -> str:
        """Return the name with a dot between module and attribute."""
        return f"{self.module}.{self.name}"


class PickledCall:
    """An object that a pickle would build: the function it calls, the arguments, the state, and the items."""

    __slots__ = ("arguments", "function", "items", "state")

    def __init__(self, function: object, arguments: object) -> None:
        """Store the call without making it."""
        self.function = function
        self.arguments: Any = arguments
        self.state: Any = None
        self.items: Any = ()  # a list where there are some: most objects have none, and there may be many

    def extend(self, items: list[Any]) -> None:
        """Add items to the object."""
        if self.items:
            self.items.extend(items)
        else:
            self.items = items


@dataclass(frozen=True, slots=True)
class Persistent:
    """The key by which a pickle refers to something outside, such as the bytes of a storage."""

    key: Any


_STOP = ord(".")
_ORDERED = Name("collections", "OrderedDict")


def read_pickle(data: bytes) -> Any:
    """Return the value that a pickle of protocols 2 to 5 describes.

    Raises:
        Exception: whatever bytes that are no pickle raise, most often ValueError, IndexError or struct.error.

    """
    return _PickleMachine(data).run()


class _PickleMachine:
    """The stack machine of pickles, as far as state dicts and checkpoints need it."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []  # picklers number memoized objects one by one

    def run(self) -> Any:
        data, steps = self.data, _STEPS
        while True:
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                break
            if code not in steps:
                raise ValueError(f"opcode {code:#x} in its pickle")
            step, operands = steps[code]
            step(self, *operands)
        if len(self.stack) != 1:
            raise ValueError("a pickle that leaves nothing or too much")
        return self.stack[0]

    def take(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise ValueError("a pickle that ends too early")
        return self.data[start : self.at]

    def line(self) -> str:
        end = self.data.index(b"\n", self.at)
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text

    def popped(self, count: int | None) -> list[Any]:
        """Pop ``count`` values; None pops the last mark and all values above it."""
        start = self.first(count)
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def first(self, count: int | None) -> int:
        """Return the index of the first of these values on the stack."""
        if count is None:
            return self.marks.pop()
        start = len(self.stack) - count
        if start < (self.marks[-1] if self.marks else 0):
            raise ValueError("a pickle that takes what is not there")
        return start

    # The steps of the opcodes, with operands from the table below.

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def push_new(self, make: Callable[[], Any]) -> None:
        self.stack.append(make())

    def push_number(self, layout: struct.Struct) -> None:
        self.stack.append(layout.unpack_from(self.data, self.at)[0])
        self.at += layout.size

    def push_bytes(self, layout: struct.Struct, convert: Callable[[bytes], Any]) -> None:
        """Push the converted bytes that follow their length."""
        [count] = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        self.stack.append(convert(self.take(count)))

    def push_made(self, make: Callable[[list[Any]], Any], count: int | None) -> None:
        start = self.first(count)
        self.stack[start:] = [make(self.stack[start:])]

    def push_top(self) -> None:
        self.stack.append(self.stack[-1])

    def mark(self) -> None:
        self.marks.append(len(self.stack))

    def drop(self) -> None:
        if self.marks and len(self.stack) == self.marks[-1]:
            self.marks.pop()
        else:
            self.stack.pop()

    def extend(self, count: int | None) -> None:
        items = self.popped(count)
        target = self.stack[-1]
        if not isinstance(target, list | PickledCall):
            raise TypeError
        target.extend(items)

    def add(self) -> None:
        items = self.popped(None)
        if isinstance(self.stack[-1], set):
            self.stack[-1].update(items)

    def update(self, count: int | None) -> None:
        items = self.popped(count)
        target = self.stack[-1]
        if isinstance(target, dict):
            target.update(_dict_of(items))
        elif isinstance(target, PickledCall):
            target.extend(items)
        else:
            raise TypeError

    def put(self, count: int) -> None:
        """Store the top of the stack in the memo, by a number of ``count`` bytes: the most frequent opcode."""
        at = self.at
        self.at = at + count
        index, memo = int.from_bytes(self.data[at : at + count], "little"), self.memo
        if index == len(memo):
            memo.append(self.stack[-1])
        elif index < len(memo):
            memo[index] = self.stack[-1]
        else:
            raise ValueError("a pickle that remembers out of order")

    def memoize(self) -> None:
        self.memo.append(self.stack[-1])

    def get(self, count: int) -> None:
        at = self.at
        self.at = at + count
        self.stack.append(self.memo[int.from_bytes(self.data[at : at + count], "little")])

    def push_global(self) -> None:
        module = self.line()
        self.stack.append(Name(module, self.line()))

    def build(self) -> None:
        [state] = self.popped(1)
        target = self.stack[-1]
        if isinstance(target, PickledCall):
            target.state = state
        elif not isinstance(target, dict):  # an OrderedDict has attributes, such as _metadata, which is left out
            raise TypeError


def _text(encoded: bytes) -> str:
    return encoded.decode("utf-8", "surrogatepass")


def _old_text(encoded: bytes) -> str:
    return encoded.decode("latin-1")


def _whole(encoded: bytes) -> int:
    return int.from_bytes(encoded, "little", signed=True)


def _dict_of(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _named(items: list[Any]) -> Name:
    module, name = items
    if not isinstance(module, str) or not isinstance(name, str):
        raise TypeError
    return Name(module, name)


def _called(items: list[Any]) -> Any:
    function, arguments, *keywords = items
    return {} if function == _ORDERED and arguments == () and not keywords else PickledCall(function, arguments)


def _persistent(items: list[Any]) -> Persistent:
    return Persistent(*items)


_1, _2, _4, _8, _SIGNED, _FLOAT = map(struct.Struct, ("<B", "<H", "<I", "<Q", "<i", ">d"))
_M = _PickleMachine
#: What each opcode does, and its operands. A number of values is how many come off the stack; None: up to the mark.
_TABLE: dict[bytes, tuple[Any, ...]] = {
    b"\x80": (_M.take, 1), b"\x95": (_M.take, 8),
    b"(": (_M.mark,), b"0": (_M.drop,), b"1": (_M.popped, None), b"2": (_M.push_top,),
    b"N": (_M.push, None), b"\x88": (_M.push, True), b"\x89": (_M.push, False), b")": (_M.push, ()),
    b"]": (_M.push_new, list), b"}": (_M.push_new, dict), b"\x8f": (_M.push_new, set),
    b"K": (_M.push_number, _1), b"M": (_M.push_number, _2), b"J": (_M.push_number, _SIGNED),
    b"G": (_M.push_number, _FLOAT), b"\x8a": (_M.push_bytes, _1, _whole), b"\x8b": (_M.push_bytes, _4, _whole),
    b"X": (_M.push_bytes, _4, _text), b"\x8c": (_M.push_bytes, _1, _text), b"\x8d": (_M.push_bytes, _8, _text),
    b"U": (_M.push_bytes, _1, _old_text), b"C": (_M.push_bytes, _1, bytes), b"B": (_M.push_bytes, _4, bytes),
    b"\x8e": (_M.push_bytes, _8, bytes), b"\x96": (_M.push_bytes, _8, bytes),
    b"t": (_M.push_made, tuple, None), b"l": (_M.push_made, list, None), b"d": (_M.push_made, _dict_of, None),
    b"\x91": (_M.push_made, frozenset, None), b"\x85": (_M.push_made, tuple, 1), b"\x86": (_M.push_made, tuple, 2),
    b"\x87": (_M.push_made, tuple, 3), b"\x93": (_M.push_made, _named, 2), b"Q": (_M.push_made, _persistent, 1),
    b"R": (_M.push_made, _called, 2), b"\x81": (_M.push_made, _called, 2), b"\x92": (_M.push_made, _called, 3),
    b"a": (_M.extend, 1), b"e": (_M.extend, None), b"\x90": (_M.add,),
    b"s": (_M.update, 2), b"u": (_M.update, None), b"b": (_M.build,), b"c": (_M.push_global,),
    b"q": (_M.put, 1), b"r": (_M.put, 4), b"\x94": (_M.memoize,), b"h": (_M.get, 1), b"j": (_M.get, 4),
}  # fmt: skip
_STEPS = {ord(code): (step, operands) for code, (step, *operands) in _TABLE.items()}
