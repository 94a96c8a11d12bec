"""Completions for shells. Where no word of an option matches, shells offer files."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Completer = Callable[[str], list[str]]


def words(*values: str) -> Completer:
    """Return a completer that offers these words."""
    return lambda incomplete: [word for word in values if word.startswith(incomplete)]


def explained(values: Mapping[str, str]) -> Callable[[str], list[tuple[str, str]]]:
    """Return a completer that offers these words, each with its explanation."""
    return lambda incomplete: [(word, text) for word, text in values.items() if word.startswith(incomplete)]


def lists(*values: str) -> Completer:
    """Return a completer for the last of several words separated by commas; "all" stands for all of them."""

    def complete(incomplete: str) -> list[str]:
        listed, comma, last = incomplete.rpartition(",")
        names = values if comma else ("all", *values)
        return [f"{listed}{comma}{name}" for name in names if name.startswith(last) and name not in listed.split(",")]

    return complete


def endings(*values: str) -> Completer:
    """Return a completer for the suffix of a file's name; before the dot, shells offer folders."""

    def complete(incomplete: str) -> list[str]:
        stem, dot, kind = incomplete.rpartition(".")
        is_name = dot and stem and not stem.endswith(("/", "."))
        return [stem + each for each in values if each.startswith(f".{kind}")] if is_name else []

    return complete
