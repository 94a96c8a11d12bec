"""Words for values, lists, sizes and times in a message."""

from __future__ import annotations

import errno
from collections.abc import Sequence

_LONGEST = 60  # characters of a value in a message
_MANY = 6  # names that a sentence lists before it says how many there are


def listed(items: Sequence[str], *, quote: bool = True) -> str:
    """Return choices, quoted and joined with "or", or a plain enumeration."""
    words = [f'"{item}"' if quote else item for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}" if quote else ", ".join(words)


def short(value: object) -> str:
    """Return a value's repr if it is short, else its type: no message prints a whole array."""
    if isinstance(value, str | bytes):
        text = repr(value[:_LONGEST])
        return text if len(value) <= _LONGEST and len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    is_row = isinstance(value, list | tuple) and len(value) < _LONGEST and all(_is_plain(item) for item in value)
    if is_row or _is_plain(value):
        text = repr(value)
        if len(text) <= _LONGEST:
            return text
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    if isinstance(value, type):
        return f"the class {name}"
    return f"{'an' if name[:1] in 'AEIOUaeiou' or name == 'ndarray' else 'a'} {name}"


def printable(text: str) -> str:
    r"""Return a text in which the characters that a terminal obeys are written as escapes: ``"\x1b"`` for ESC."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 value", "2 values"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def some(devices: Sequence[str]) -> str:
    """Return the names of devices, or the first few of many and their number."""
    if len(devices) <= _MANY:
        return ", ".join(devices)
    return f"{', '.join(devices[: _MANY - 1])} … ({counted(len(devices), 'device')})"


def bytes_in_words(nbytes: float) -> str:
    """Return a size to three digits, in the largest binary unit that it fills.

    >>> bytes_in_words(64 << 20), bytes_in_words(100_000_000), bytes_in_words(1000), bytes_in_words(1.5 * 2**30)
    ('64 MiB', '95.4 MiB', '1000 B', '1.5 GiB')
    """
    units = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))
    return _in_words(nbytes, *next((unit for unit in units if nbytes >= unit[1]), ("B", 1.0)))


def seconds_in_words(seconds: float) -> str:
    """Return a time to three digits, in the unit that suits it.

    >>> seconds_in_words(0.0), seconds_in_words(8.352e-4), seconds_in_words(0.00999999), seconds_in_words(2.5)
    ('0', '835 µs', '10 ms', '2.5 s')
    """
    units = (("s", 1.0), ("ms", 1e-3))
    unit = next((unit for unit in units if seconds >= 0.9995 * unit[1]), ("µs", 1e-6))  # 0.9995 rounds to 1.00
    return _in_words(seconds, *unit) if seconds else "0"


def _in_words(value: float, unit: str, size: float) -> str:
    number = value / size
    return f"{number:.3g} {unit}" if number < 1000 else f"{number:.0f} {unit}"  # noqa: PLR2004 - no exponents


def reason_of(error: OSError) -> str:
    """Return the system's words for a failure, with the remedy where it is the same everywhere."""
    if error.errno == errno.EMFILE:
        return "too many open files; raise the limit, for example with ulimit -n 4096"
    return (error.strerror or str(error)).lower()


def _is_plain(value: object) -> bool:
    """Return whether a value's repr can be shown. Python refuses to write out integers of thousands of digits."""
    if isinstance(value, int):
        return value.bit_length() < 4 * _LONGEST
    return value is None or isinstance(value, float | complex | str | bytes)
