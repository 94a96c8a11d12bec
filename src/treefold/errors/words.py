"""How messages show values and lists."""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST = 60  # characters of a value in a message


def listed(items: Sequence[str], *, quote: bool = True) -> str:
    """Return choices (quoted, with "or") or a plain enumeration."""
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
    r"""Return a text with what a terminal would obey instead of show written as an escape: ``"\x1b"`` for ESC."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 value", "2 values"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def _is_plain(value: object) -> bool:
    """Tell whether a value's repr can be shown. Python writes out no integers of thousands of digits."""
    if isinstance(value, int):
        return value.bit_length() < 4 * _LONGEST
    return value is None or isinstance(value, float | complex | str | bytes)
