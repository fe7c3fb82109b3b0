"""Summaries of opened wrappers, by kind of wrapper, kind of content and codec; summing.py makes them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from squeeze.codecs.parse import outline

__all__ = ["Contents", "Group", "joined", "merged"]


@dataclass(frozen=True)
class Group:
    """Opened bytes of one kind of content that one codec codes.

    Attributes:
        content: Their kind of content.
        codec: Their codec.
        opened: Their number.
        coded: The bytes that they are coded in.
    """

    content: str
    codec: str
    opened: int
    coded: int


@dataclass(frozen=True)
class Contents:
    """The wrappers and the contents of one block or several.

    Attributes:
        wrappers: The number of wrappers of each kind.
        raw_size: The raw bytes of the blocks.
        opened_size: The bytes with all wrappers opened.
        plan_size: Coded bytes that close the wrappers again.
        groups: The opened bytes, by content and codec.
    """

    wrappers: Mapping[str, int]
    raw_size: int
    opened_size: int
    plan_size: int
    groups: tuple[Group, ...]

    def __str__(self) -> str:
        return f"{outline.in_words(self.wrappers)}: {self.raw_size:,} bytes, {self.opened_size:,} opened"

    def as_json(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        return asdict(self)


def merged(found: Iterable[Contents]) -> Contents | None:
    """Return the sums of several blocks, or None without any."""
    blocks = list(found)
    if not blocks:
        return None
    wrappers = sum((Counter(block.wrappers) for block in blocks), Counter[str]())
    return Contents(
        dict(wrappers.most_common()),
        sum(block.raw_size for block in blocks),
        sum(block.opened_size for block in blocks),
        sum(block.plan_size for block in blocks),
        joined(group for block in blocks for group in block.groups),
    )


def joined(groups: Iterable[Group]) -> tuple[Group, ...]:
    """Return groups of which no two have the same content and codec."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for group in groups:
        size, coded = sums.get((group.content, group.codec), (0, 0))
        sums[group.content, group.codec] = size + group.opened, coded + group.coded
    return tuple(Group(*names, *sizes) for names, sizes in sums.items())
