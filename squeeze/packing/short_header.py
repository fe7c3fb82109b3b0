"""Headers of safetensors files without the offsets that follow from dtypes and shapes.

In most files each tensor begins where the one before in the header ends. The offsets are then most of what zlib cannot
compress. docs/format.md, section 10.1, specifies the short form.
"""

import re
from math import prod

from squeeze.checkpoint.safetensors import ELEMENT_BITS

__all__ = ["lengthened", "shortened"]

_ENTRY = re.compile(
    rb'"dtype":"([A-Z0-9_]{1,32})","shape":\[((?:[0-9]{1,19}(?:,[0-9]{1,19}){0,63})?)\],"data_offsets":\['
)
_MOST = 1 << 63  # an offset: others would make a header much longer than its short form
_OFFSETS = re.compile(rb"([0-9]{1,19}),([0-9]{1,19})\]")


def shortened(header: bytes) -> bytes:
    """Return the short form of a valid header: offsets are left out that `lengthened` puts there."""
    return _converted(header, is_short=False)


def lengthened(text: bytes) -> bytes:
    """Return the header of a short form; that of damaged data is no valid header, or another one."""
    return _converted(text, is_short=True)


def _converted(text: bytes, is_short: bool) -> bytes:
    """Return a header with the expected offsets put in, or left out."""
    out, done, end = [], 0, 0  # `end`: of the tensor before, in bytes
    for entry in _ENTRY.finditer(text):
        dtype, shape, place = entry[1].decode(), entry[2], entry.end()
        bits = prod(map(int, shape.split(b","))) if shape else 1
        size = bits * ELEMENT_BITS[dtype] // 8 if dtype in ELEMENT_BITS else _MOST
        expected = (end, end + size) if end + size < _MOST else None
        if expected and is_short and text[place : place + 1] == b"]":
            out += [text[done:place], b"%d,%d" % expected]
            done, end = place, expected[1]
        elif found := _OFFSETS.match(text, place):
            offsets = int(found[1]), int(found[2])
            if not is_short and offsets == expected and found[0] == b"%d,%d]" % offsets:
                out.append(text[done:place])
                done = found.end() - 1
            end = offsets[1]
    return b"".join([*out, text[done:]])
