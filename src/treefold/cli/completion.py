"""What shells complete. For what begins none of an option's words, they offer files."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Completer = Callable[[str], list[str]]


def words(*values: str) -> Completer:
    """Return what completes one of these words."""
    return lambda incomplete: [word for word in values if word.startswith(incomplete)]


def explained(values: Mapping[str, str]) -> Callable[[str], list[tuple[str, str]]]:
    """Return what completes one of these words, each with what is said of it."""
    return lambda incomplete: [(word, text) for word, text in values.items() if word.startswith(incomplete)]


def lists(*values: str) -> Completer:
    """Return what completes the last of these words, separated by commas; "all" stands for all of them."""

    def complete(incomplete: str) -> list[str]:
        listed, comma, last = incomplete.rpartition(",")
        names = values if comma else ("all", *values)
        return [f"{listed}{comma}{name}" for name in names if name.startswith(last) and name not in listed.split(",")]

    return complete


def endings(*values: str) -> Completer:
    """Return what completes a file's name behind its dot; before the dot, shells offer folders."""

    def complete(incomplete: str) -> list[str]:
        stem, dot, kind = incomplete.rpartition(".")
        is_name = dot and stem and not stem.endswith(("/", "."))
        return [stem + each for each in values if each.startswith(f".{kind}")] if is_name else []

    return complete
