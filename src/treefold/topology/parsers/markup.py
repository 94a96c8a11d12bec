"""Reads XML within bounds: no entities, nothing fetched, and no more elements or depth than a machine has."""

from __future__ import annotations

from xml.etree.ElementTree import Element, TreeBuilder
from xml.etree.ElementTree import ParseError as XmlSyntaxError

from treefold.errors import ParseError

MAX_ELEMENTS = 50_000
MAX_DEPTH = 64


class _BoundedBuilder(TreeBuilder):
    """Builds the tree, and stops if it has too many elements or gets too deep."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = self._count = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        self._depth += 1
        self._count += 1
        if self._depth > MAX_DEPTH:
            raise ParseError.too_much("levels of XML", self._depth, MAX_DEPTH)
        if self._count > MAX_ELEMENTS:
            raise ParseError.too_much("XML elements", self._count, MAX_ELEMENTS)
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag)


def root_tag(text: str) -> str:
    """Return the name of the root element after any comments, or an empty string if the text is no XML."""
    position = len(text) - len(text.lstrip())
    while text.startswith("<", position):
        for opening, closing in (("<!--", "-->"), ("<?", "?>"), ("<!", ">")):
            if text.startswith(opening, position):
                end = text.find(closing, position)
                position = text.find("<", end) if end >= 0 else len(text)
                break
        else:
            end = position + 1
            while end < len(text) and end < position + 100 and not text[end].isspace() and text[end] not in "/><":
                end += 1
            return text[position + 1 : end]
    return ""


def read_xml(text: str) -> Element:
    """Return the root element.

    Raises:
        ParseError: broken XML, XML with entities, more than a machine has, or two such elements.

    """
    from defusedxml import DefusedXmlException  # noqa: PLC0415 - only those who read XML pay for it
    from defusedxml.ElementTree import DefusedXMLParser  # noqa: PLC0415 - as above

    tag = root_tag(text)
    closing = f"</{tag}>"
    if text.count(closing) > 1:
        raise ParseError.two_machines(f"the element <{tag}> stands there twice")
    # expat refuses whatever follows the root element.
    end = text.rfind(closing) if closing in text else len(text)
    parser = DefusedXMLParser(target=_BoundedBuilder())
    try:
        parser.feed(text[: end + len(closing)])  # without the prompt below a paste
        root = parser.close()
    except ParseError:
        raise
    except DefusedXmlException:
        raise ParseError(
            "The XML defines entities, which no topology does and which can be bombs. Remove them."
        ) from None
    except (XmlSyntaxError, ValueError, AssertionError) as error:
        raise ParseError.broken("XML", str(error) or "it has no element") from None
    if not isinstance(root, Element):
        raise ParseError.broken("XML", "it has no element")
    return root
