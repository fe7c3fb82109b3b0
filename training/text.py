"""Convert marked-up books to plain text and wiki pages: XHTML, TEI and CNXML are read as trees of blocks."""

import re
import textwrap
from collections.abc import Iterator
from html import escape
from xml.etree import ElementTree

_BLOCKS = """
abstract blockquote body caption cell content dd definition div document dt entry equation exercise figcaption figure
footnote glossary group h1 h2 h3 h4 h5 h6 head header hgroup html item l label lg li list meaning note ol p para problem
q row section solution speaker subtitle table tbody td text tgroup th thead title tr ul
"""
BLOCKS = frozenset(_BLOCKS.split())
SKIPPED = frozenset(("metadata", "teiHeader", "script", "style", "media", "image", "math"))
_HEADINGS = frozenset(("title", "head", "h1", "h2", "h3", "h4", "h5", "h6"))
_ASCII = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2014": "--", "\u2013": "-", "\u2026": "...",
     "\u00a0": " ", "\u2060": "", "\u200a": "", "\u200b": "", "\ufeff": "", "\u00ad": "", "\u2009": " "}
)  # fmt: skip


def tree(content: bytes) -> ElementTree.Element | None:
    """Parse XML. Return None if it is not well formed or declares entities."""
    if b"<!ENTITY" in content:
        return None
    try:
        return ElementTree.fromstring(content)
    except ElementTree.ParseError:
        return None


def plain(element: ElementTree.Element) -> str:
    """Return the text of an element: a line per paragraph or heading, with blank lines between."""
    return "\n\n".join(text for _, text in blocks(element, wiki=False)) + "\n"


def gutenberg(text: str, width: int, *, indent: bool) -> str:
    """Wrap paragraphs at a width with ASCII quotes and dashes, as in older plain-text books.

    Args:
        text: paragraphs
        width: characters of a line
        indent: whether paragraphs are indented
    """
    first = "  " if indent else ""
    paragraphs = text.translate(_ASCII).strip().split("\n\n")
    lines = (textwrap.fill(part, width, initial_indent=first, break_on_hyphens=False) for part in paragraphs)
    return "\n\n".join(lines) + "\n"


def chapters(element: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Yield the chapters of a TEI text, or the whole element if it has none."""
    found = [part for part in element.iter() if _name(part) == "div" and part.get("type") == "chapter"]
    if found:
        yield from found
        return
    yield next((part for part in element.iter() if _name(part) == "text"), element)


def wiki(element: ElementTree.Element, number: int) -> str:
    """Return a page of wiki markup for a CNXML module. `number` selects a style of markup."""
    parts, title = [], ""
    for name, text in blocks(element, wiki=True):
        if name in _HEADINGS and not title:
            title = text
        elif name in _HEADINGS:
            parts.append(f"=={text}==" if number % 3 else f"== {text} ==")
        elif name == "item":
            parts.append(f"* {text}" if number % 2 else f"*{text}")
        else:
            parts.append(text)
    body = re.sub(r"(?m)^(\*.*)\n\n(?=\*)", r"\1\n", "\n\n".join(parts).translate(_ASCII))
    terms = re.findall(r"\[\[([^\]|]+)\]\]", body)
    footer = "\n".join(f"[[Category:{term.capitalize()}]]" for term in terms[:3])
    page = f"'''{title}'''\n\n{body}\n" + (f"\n{footer}\n" if footer else "")
    return escape(page) if number % 2 else page


def blocks(element: ElementTree.Element, *, wiki: bool) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the innermost blocks of an element in order, with wiki markup inside if asked."""
    name = _name(element)
    if name in SKIPPED or (name == "head" and element.find("./{*}meta") is not None):
        return
    if not any(_name(part) in BLOCKS for part in element.iter() if part is not element):
        text = re.sub(r"\s+", " ", _inline(element, wiki=wiki)).strip()
        if text:
            yield name, text
        return
    loose: list[str] = [element.text or ""]
    for part in element:
        if _name(part) in BLOCKS:
            yield from _loose(name, loose)
            loose = [part.tail or ""]
            yield from blocks(part, wiki=wiki)
        else:
            loose += [_inline(part, wiki=wiki), part.tail or ""]
    yield from _loose(name, loose)


def _loose(name: str, parts: list[str]) -> Iterator[tuple[str, str]]:
    if text := re.sub(r"\s+", " ", "".join(parts)).strip():
        yield name, text


def _inline(element: ElementTree.Element, *, wiki: bool) -> str:
    name = _name(element)
    if name in SKIPPED:
        return ""
    inner = [element.text or ""]
    for part in element:
        inner += [_inline(part, wiki=wiki), part.tail or ""]
    text = "".join(inner)
    if not wiki or not text.strip():
        return text
    if name == "term":
        return f"[[{text}]]" if len(text) % 3 else f"'''{text}'''"
    if name == "link" and (url := element.get("url")):
        return f"[{url} {text}]"
    return f"''{text}''" if name in ("emphasis", "em", "i") else text


def _name(element: ElementTree.Element) -> str:
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""
