"""How messages show values and lists."""

from __future__ import annotations

from collections.abc import Sequence


def listed(items: Sequence[str], *, quote: bool = True) -> str:
    """Return choices (quoted, with "or") or a plain enumeration."""
    words = [f'"{item}"' if quote else item for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}" if quote else ", ".join(words)


def short(value: object) -> str:
    """Return a value's repr if it is short, else its type: no message prints a whole array."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"{'an' if type(value).__name__[:1] in 'AEIOUaeiou' else 'a'} {type(value).__name__}"
