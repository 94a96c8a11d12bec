"""Pickles, read as data: no name is looked up, nothing is called, no object of a class is built.

A call that a pickle asks for becomes a ``Call`` with its arguments, and a name that it looks up a ``Name``.
Python's own unpickler, even one that finds no class, gives a few bytes any amount of memory; here memory is bounded by
the bytes of the pickle.
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
        """Write it with a dot."""
        return f"{self.module}.{self.name}"


class Call:
    """An object that a pickle would build: what it calls, with which arguments, its state, and what it is given."""

    __slots__ = ("arguments", "function", "items", "state")

    def __init__(self, function: object, arguments: object) -> None:
        """Note what would be called."""
        self.function = function
        self.arguments: Any = arguments
        self.state: Any = None
        self.items: Any = ()  # a list where there are some: most objects have none, and there may be many

    def extend(self, items: list[Any]) -> None:
        """Give it items."""
        if self.items:
            self.items.extend(items)
        else:
            self.items = items


@dataclass(frozen=True, slots=True)
class Persistent:
    """The key by which a pickle names something beside it, such as the bytes of a storage."""

    key: Any


class _MarkType:
    __slots__ = ()


_MARK = _MarkType()
_STOP = ord(".")


def read_pickle(data: bytes) -> Any:
    """Return what a pickle of protocols 2 to 5 describes.

    Raises:
        Exception: whatever bytes that are no pickle raise, most often ValueError, IndexError or struct.error.

    """
    return _Machine(data).run()


class _Machine:
    """The stack machine of pickles, as far as state dicts and checkpoints need it."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []  # picklers number what they remember one by one

    def run(self) -> Any:
        data = self.data
        steps = _STEPS
        while True:
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                break
            step = steps[code]
            if step is None:
                message = f"opcode {code:#x} in its pickle"
                raise ValueError(message)
            step(self)
        if len(self.stack) != 1:
            message = "a pickle that leaves nothing or too much"
            raise ValueError(message)
        return self.stack[0]

    def take(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if self.at > len(self.data):
            message = "a pickle that ends too early"
            raise ValueError(message)
        return self.data[start : self.at]

    def number(self, unpack: Callable[[bytes, int], tuple[Any, ...]], count: int) -> Any:
        at, self.at = self.at, self.at + count
        return unpack(self.data, at)[0]

    def line(self) -> str:
        end = self.data.index(b"\n", self.at)
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text

    def to_mark(self) -> list[Any]:
        """Take off the stack what stands behind the last mark."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def pop(self) -> Any:
        if self.marks and len(self.stack) <= self.marks[-1]:
            message = "a pickle that takes what is not there"
            raise ValueError(message)
        return self.stack.pop()


def _text(length: str, count: int) -> Callable[[_Machine], None]:
    unpack = struct.Struct(length).unpack_from

    def step(machine: _Machine) -> None:
        machine.stack.append(machine.take(machine.number(unpack, count)).decode("utf-8", "surrogatepass"))

    return step


def _binary(length: str, count: int) -> Callable[[_Machine], None]:
    unpack = struct.Struct(length).unpack_from

    def step(machine: _Machine) -> None:
        machine.stack.append(machine.take(machine.number(unpack, count)))

    return step


def _short(machine: _Machine) -> None:
    """Push text of the old kind, one byte a character."""
    machine.stack.append(machine.take(machine.take(1)[0]).decode("latin-1"))


def _fixed(layout: str, count: int) -> Callable[[_Machine], None]:
    unpack = struct.Struct(layout).unpack_from

    def step(machine: _Machine) -> None:
        machine.stack.append(machine.number(unpack, count))

    return step


def _constant(make: Callable[[], Any]) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        machine.stack.append(make())

    return step


def _long(length: str, count: int) -> Callable[[_Machine], None]:
    unpack = struct.Struct(length).unpack_from

    def step(machine: _Machine) -> None:
        machine.stack.append(int.from_bytes(machine.take(machine.number(unpack, count)), "little", signed=True))

    return step


def _tuple(count: int) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        stack = machine.stack
        if len(stack) - count < (machine.marks[-1] if machine.marks else 0):
            raise IndexError
        items = tuple(stack[-count:])
        stack[-count:] = [items]

    return step


def _put(count: int) -> Callable[[_Machine], None]:
    """Remember what is on top, by a number of ``count`` bytes: the most frequent opcode."""

    def step(machine: _Machine) -> None:
        at = machine.at
        machine.at = at + count
        index, memo = int.from_bytes(machine.data[at : at + count], "little"), machine.memo
        if index == len(memo):
            memo.append(machine.stack[-1])
        elif index < len(memo):
            memo[index] = machine.stack[-1]
        else:
            message = "a pickle that remembers out of order"
            raise ValueError(message)

    return step


def _get(count: int) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        at = machine.at
        machine.at = at + count
        machine.stack.append(machine.memo[int.from_bytes(machine.data[at : at + count], "little")])

    return step


def _from_mark(make: Callable[[list[Any]], Any]) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        items = machine.to_mark()
        machine.stack.append(make(items))

    return step


def _dict_of(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _append(machine: _Machine) -> None:
    _extend(machine.stack, [machine.pop()])


def _appends(machine: _Machine) -> None:
    items = machine.to_mark()
    _extend(machine.stack, items)


def _extend(stack: list[Any], items: list[Any]) -> None:
    target = stack[-1]
    if not isinstance(target, list | Call):
        raise TypeError
    target.extend(items)


def _add_items(machine: _Machine) -> None:
    items = machine.to_mark()
    if isinstance(machine.stack[-1], set):
        machine.stack[-1].update(items)


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    _update(machine.stack[-1], [key, value])


def _set_items(machine: _Machine) -> None:
    items = machine.to_mark()
    _update(machine.stack[-1], items)


def _update(target: Any, items: list[Any]) -> None:
    if isinstance(target, dict):
        target.update(_dict_of(items))
    elif isinstance(target, Call):
        target.extend(items)
    else:
        raise TypeError


def _global(machine: _Machine) -> None:
    module = machine.line()
    machine.stack.append(Name(module, machine.line()))


def _stack_global(machine: _Machine) -> None:
    name, module = machine.pop(), machine.pop()
    machine.stack.append(Name(_as_text(module), _as_text(name)))


def _as_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


_ORDERED = Name("collections", "OrderedDict")


def _reduce(machine: _Machine) -> None:
    arguments, function = machine.pop(), machine.pop()
    is_empty_dict = function == _ORDERED and arguments == ()
    machine.stack.append({} if is_empty_dict else Call(function, arguments))


def _new_object(machine: _Machine) -> None:
    arguments, cls = machine.pop(), machine.pop()
    machine.stack.append({} if cls == _ORDERED and arguments == () else Call(cls, arguments))


def _new_object_ex(machine: _Machine) -> None:
    _, arguments, cls = machine.pop(), machine.pop(), machine.pop()
    machine.stack.append(Call(cls, arguments))


def _build(machine: _Machine) -> None:
    state = machine.pop()
    target = machine.stack[-1]
    if isinstance(target, Call):
        target.state = state
    elif not isinstance(target, dict):  # an OrderedDict has attributes, such as _metadata, which is left out
        raise TypeError


def _mark(machine: _Machine) -> None:
    machine.marks.append(len(machine.stack))


def _pop(machine: _Machine) -> None:
    if machine.marks and len(machine.stack) == machine.marks[-1]:
        machine.marks.pop()
    else:
        machine.stack.pop()


def _byte(machine: _Machine) -> None:
    at = machine.at
    machine.at = at + 1
    machine.stack.append(machine.data[at])


def _memoize(machine: _Machine) -> None:
    machine.memo.append(machine.stack[-1])


def _persistent(machine: _Machine) -> None:
    machine.stack.append(Persistent(machine.pop()))


def _skip(count: int) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        machine.take(count)

    return step


def _pop_mark(machine: _Machine) -> None:
    machine.to_mark()


def _duplicate(machine: _Machine) -> None:
    machine.stack.append(machine.stack[-1])


def _table(steps: dict[bytes, Callable[[_Machine], None]]) -> list[Callable[[_Machine], None] | None]:
    return [steps.get(bytes([code])) for code in range(256)]


_STEPS = _table({
    b"\x80": _skip(1), b"\x95": _skip(8),
    b"(": _mark, b"0": _pop, b"1": _pop_mark, b"2": _duplicate,
    b"N": _constant(lambda: None), b"\x88": _constant(lambda: True), b"\x89": _constant(lambda: False),
    b"K": _byte, b"M": _fixed("<H", 2), b"J": _fixed("<i", 4), b"G": _fixed(">d", 8),
    b"\x8a": _long("<B", 1), b"\x8b": _long("<I", 4),
    b"X": _text("<I", 4), b"\x8c": _text("<B", 1), b"\x8d": _text("<Q", 8), b"U": _short,
    b"C": _binary("<B", 1), b"B": _binary("<I", 4), b"\x8e": _binary("<Q", 8), b"\x96": _binary("<Q", 8),
    b")": _constant(tuple), b"]": _constant(list), b"}": _constant(dict), b"\x8f": _constant(set),
    b"t": _from_mark(tuple), b"l": _from_mark(list), b"d": _from_mark(_dict_of), b"\x91": _from_mark(frozenset),
    b"\x85": _tuple(1), b"\x86": _tuple(2), b"\x87": _tuple(3),
    b"a": _append, b"e": _appends, b"\x90": _add_items, b"s": _set_item, b"u": _set_items,
    b"q": _put(1), b"r": _put(4), b"\x94": _memoize, b"h": _get(1), b"j": _get(4),
    b"c": _global, b"\x93": _stack_global,
    b"R": _reduce, b"\x81": _new_object, b"\x92": _new_object_ex, b"b": _build,
    b"Q": _persistent,
})  # fmt: skip
