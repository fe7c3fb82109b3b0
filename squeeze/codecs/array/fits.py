"""Images in FITS, the format of astronomy: arrays of numbers, high byte first, in blocks of 2,880 bytes.

A header is cards of 80 characters. BITPIX gives the bits of a number, negative for floats, and NAXIS1, NAXIS2 and so on
the shape, the fastest first. See the FITS standard, version 4.0, sections 3 and 4.
"""

import re
from collections.abc import Iterator

from squeeze.codecs.array.layout import FLOAT, MOST_ACROSS, SIGNED, Layout

__all__ = ["find_fits"]

_BLOCK, _CARD = 2880, 80
_MOST_BLOCKS = 64  # of a header
_MOST_AXES = 9  # whose numbers have one digit
_LEAST = 1 << 13  # bytes of an image that pay for cutting the headers around it
_START = re.compile(rb"(?:SIMPLE  = {20}T|XTENSION= 'IMAGE   ')")
_CARD_OF = re.compile(rb"(BITPIX|NAXIS\d?) *= *(-?\d{1,9})(?: |/|$)")
_WIDTHS = {16: 2, 32: 4, 64: 8, -32: 4, -64: 8}


def find_fits(raw: bytes) -> Iterator[tuple[int, int, Layout]]:
    """Yield (start, end, layout) of the data of each image whose numbers have more than a byte."""
    place = 0
    while match := _START.search(raw, place):
        first, cards = _header(raw, match.start())
        place = max(first, match.end())  # no header is read twice
        width, shape = _WIDTHS.get(cards.get(b"BITPIX", 0), 0), _shape(cards)
        if not width or not shape:
            continue
        size = width
        for number in shape:
            size = min(size * number, len(raw))
        across = shape[0] if len(shape) > 1 and 1 < shape[0] <= MOST_ACROSS else 0
        kind = FLOAT if cards[b"BITPIX"] < 0 else SIGNED
        end = min(first + size, len(raw))
        if end - first >= _LEAST:
            yield first, end, Layout(width, 1, kind, 1, 0, across)


def _header(raw: bytes, start: int) -> tuple[int, dict[bytes, int]]:
    """Return where the data after the header at `start` begins, and the header's numbers; none if it has no end."""
    cards, at = dict[bytes, int](), start
    for at in range(start, min(start + _MOST_BLOCKS * _BLOCK, len(raw)), _CARD):
        card = raw[at : at + _CARD]
        if card.rstrip() == b"END":
            return start - (start - at - _CARD) // _BLOCK * _BLOCK, cards
        if known := _CARD_OF.match(card):
            cards.setdefault(known[1], int(known[2]))
    return at, {}


def _shape(cards: dict[bytes, int]) -> list[int]:
    """Return the numbers along each axis, the fastest first, or nothing if there is no data."""
    axes = cards.get(b"NAXIS", 0)
    shape = [cards.get(b"NAXIS%d" % (k + 1), 0) for k in range(axes if 0 < axes <= _MOST_AXES else 0)]
    return shape if shape and min(shape) > 0 else []
