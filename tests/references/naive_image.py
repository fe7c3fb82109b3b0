"""A decoder of images, written from docs/format.md, section 22, one number at a time."""

from tests.references.naive_bilevel import TwoValues
from tests.references.naive_bytewise import Coder
from tests.references.naive_image_model import Image
from tests.references.reading import Bytes

PASSES = ((0, 8, 0, 8), (4, 8, 0, 8), (0, 4, 4, 8), (2, 4, 0, 4), (0, 2, 2, 4), (1, 2, 0, 2), (0, 1, 1, 2))


def decode(payload: bytes, length: int) -> bytes:
    """Return the raw bytes of a payload."""
    file = Bytes(payload)
    mark, flags, depth = file.byte(), file.byte(), file.byte()
    bits, channels = (1, 2, 4, 8, 16)[depth], (flags >> 4) + 1
    width, padding, prefix = file.varint(), file.varint(), file.varint()
    height = file.varint() if flags & 8 else 0

    def row_of(pixels: int) -> int:
        return (pixels * bits * channels + 7) >> 3

    filtered, size = flags & 1, length - prefix
    if height:
        passes = [
            (-(-max(height - top, 0) // down), row_of(-(-max(width - first, 0) // step)))
            for first, step, top, down in PASSES
        ]
        sections = [(rows, stride, rows * stride) for rows, stride in passes if rows and stride]
    else:
        stride = row_of(width) + padding
        rows = -(-size // (stride + filtered))
        sections = [(rows, stride, size - rows * filtered)]
    pixel, sample = max(bits * channels >> 3, 1), max(bits >> 3, 1)
    is_exact = bool(flags & 2) or bits < 8
    whole, total = row_of(width) + padding, sum(part[2] for part in sections)
    if mark not in (2, 3):
        image = Image(mark, pixel, sample, whole, total, is_exact)
    else:
        image = TwoValues(mark - 2, bits, whole, total, (file.byte(), file.byte()))
    image.coder = Coder(file.take(file.rest))
    raw = image.prefix(prefix)
    before = 5
    for rows, stride, total in sections:
        image.stride, image.padding, image.up = stride, padding, max(stride, 4 * pixel)
        image.start_pass()
        above, done = [0] * stride, 0
        for _ in range(rows):
            row = image.row(min(stride, total - done))
            done += len(row)
            if filtered:
                before, coded = image.filter(row, above, before)
                raw += coded
            else:
                raw += row
            above = list(row)
    if flags & 4:
        body = bytearray(raw[prefix:])
        even = len(body) // 2 * 2
        body[0:even:2], body[1:even:2] = body[1:even:2], body[0:even:2]
        raw = raw[:prefix] + bytes(body)
    return raw
