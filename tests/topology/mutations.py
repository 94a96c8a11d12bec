"""Damage as people and pipes do it: cut, repeated, swapped, overwritten."""

from hypothesis import strategies as st

HOSTILE = [
    "",
    "\0",
    "\ufeff",
    "\x1b[31m",
    "\ud800",
    "é" * 50,
    "\U0001d7d7",
    "-1",
    "1e999",
    "9" * 400,
    "nan",
    "null",
    "<!--",
    "]]>",
    "&amp;",
    "&x;",
    '"',
    "'",
    "[[[[",
    "{",
    "GPU0",
    "GPU99999",
    "NV999",
    "X",
    "0x",
    "0000:01:00.0",
    "fffffff:ff:ff.0",
    "N/A",
    "\n\n",
    "=====",
]


def _apply(text, mutation):
    """Return the text after one mutation: its name, two places in it (in thousandths), and what is put there."""
    name, first, second, insert = mutation
    start, stop = sorted((first * len(text) // 1000, second * len(text) // 1000))
    lines = text.split("\n")
    a, b = first * (len(lines) - 1) // 1000, second * (len(lines) - 1) // 1000
    match name:
        case "cut":
            return text[:start] + text[stop:]
        case "end":
            return text[:stop]
        case "insert":
            return text[:start] + insert + text[start:]
        case "overwrite":
            return text[:start] + insert + text[start + len(insert) :]
        case "repeat":
            return text[:stop] + text[start:stop] + text[stop:]
        case "swap lines":
            lines[a], lines[b] = lines[b], lines[a]
        case "repeat line":
            lines.insert(b, lines[a])
        case "drop line":
            del lines[a]
    return "\n".join(lines)


_NAMES = ("cut", "end", "insert", "overwrite", "repeat", "swap lines", "repeat line", "drop line")
_MOST_MUTATIONS = 8
_MUTATION = st.tuples(
    st.sampled_from(_NAMES),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.one_of(st.sampled_from(HOSTILE), st.text(max_size=8)),
)


def mutated(texts):
    """Return texts with up to eight mutations of one."""

    def apply_all(drawn):
        text, mutations = drawn
        for mutation in mutations:
            text = _apply(text, mutation)
        return text

    return st.tuples(st.sampled_from(sorted(texts)), st.lists(_MUTATION, min_size=1, max_size=_MOST_MUTATIONS)).map(
        apply_all
    )


def draw_mutated(drawing, texts):
    """Return one text with up to eight mutations; for more texts than hypothesis has time for."""
    text = drawing.choice(texts)
    for _ in range(
        min(drawing.randint(1, _MOST_MUTATIONS) for _ in range(3))
    ):  # mostly few: more gets past the first check
        text = _apply(
            text, (drawing.choice(_NAMES), drawing.randint(0, 1000), drawing.randint(0, 1000), _insert(drawing))
        )
    return text


def _insert(drawing):
    if drawing.random() < 0.5:
        return drawing.choice(HOSTILE)
    return "".join(chr(drawing.choice((drawing.randrange(128), drawing.randrange(0xD800)))) for _ in range(4))
