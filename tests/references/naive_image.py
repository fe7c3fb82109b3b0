"""A decoder of images, written from docs/format.md, section 22, one number at a time."""

from tests.references.naive_bilevel import TwoValues
from tests.references.naive_bytewise import Coder
from tests.references.naive_decoded import Blocks
from tests.references.naive_image_model import Image
from tests.references.reading import Bytes

PASSES = ((0, 8, 0, 8), (4, 8, 0, 8), (0, 4, 4, 8), (2, 4, 0, 4), (0, 2, 2, 4), (1, 2, 0, 2), (0, 1, 1, 2))


def decode(payload: bytes, length: int) -> bytes:
    """Return the raw bytes of a payload."""
    file = Bytes(payload)
    mark, flags, depth = file.byte(), file.byte(), file.byte()
    bits, channels, colours, has_blocks = (1, 2, 4, 8, 16)[depth & 7], (flags >> 4 & 3) + 1, flags >> 6, depth >> 3
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
        image = Image(mark, pixel, sample, whole, total, is_exact, colours > 0)
    else:
        image = TwoValues(mark - 2, bits, whole, total, (file.byte(), file.byte()))
    places = [(file.byte(), file.byte()) for _ in range(min(channels, 3) * has_blocks)]
    exceptions = file.varint() if colours else 0
    image.coder = Coder(file.take(file.rest))
    added = image.prefix(exceptions + 64 * len(places) + prefix)
    raw, steps, added = added[len(added) - prefix :], added[exceptions:], added[:exceptions]
    blocks = Blocks(places, sections[0][0], width)
    if has_blocks:
        blocks.decode(steps, image.coder)
    before, kept = 5, list[tuple[int, bytes]]()
    for number, (rows, stride, total) in enumerate(sections):
        image.stride, image.padding, image.up = stride, padding, max(stride, 4 * pixel)
        image.start_pass()
        above, done = [0] * stride, 0
        for _ in range(rows):
            row = image.row(min(stride, total - done))
            done += len(row)
            if colours or has_blocks:
                kept.append((number, row))
            elif filtered:
                before, coded = image.filter(row, above, before)
                raw += coded
            else:
                raw += row
            above = list(row)
    widths = [stride - padding for _, stride, _ in sections]
    for number, plane in enumerate(blocks.pixels() if has_blocks else []):
        kept = [(0, _added(row, pixel, number, more)) for (_, row), more in zip(kept, plane, strict=True)]
    made, last = (
        restore([(row, len(row[: widths[number]]) * (colours > 0)) for number, row in kept], pixel, colours, added),
        -1,
    )
    for (number, _), row in zip(kept, made, strict=True):
        above = above if number == last else [0] * len(row)
        before, coded = image.filter(row, above, before) if filtered else (before, row)
        raw += coded
        above, last = list(row), number
    if flags & 4:
        body = bytearray(raw[prefix:])
        even = len(body) // 2 * 2
        body[0:even:2], body[1:even:2] = body[1:even:2], body[0:even:2]
        raw = raw[:prefix] + bytes(body)
    return raw


def _added(row: bytes, pixel: int, number: int, plane: list[int]) -> bytes:
    changed = bytearray(row)
    for x, value in enumerate(plane):
        changed[pixel * x + number] = (changed[pixel * x + number] + value) % 256
    return bytes(changed)


def restore(rows: list[tuple[bytes, int]], pixel: int, colours: int, added: bytes) -> list[bytes]:
    """Return rows in red, green and blue; each is given with the number of its bytes without padding."""

    def cut(v: int) -> int:
        return min(max(v, 0), 255)

    file, exceptions, number = Bytes(added), dict[int, tuple[int, ...]](), -1
    while file.rest:
        number += file.varint() + 1
        exceptions[number] = file.byte(), file.byte(), file.byte()
    changes = dict[tuple[int, int], int]()
    made, number = list[bytes](), 0
    for coded, width in rows:
        row = bytearray(coded)
        for i in range(0, width - pixel + 1, pixel):
            y, cb, cr = coded[i], coded[i + 1] - 128, coded[i + 2] - 128
            green = ((-22554 * cb - 46802 * cr + 32768) >> 16) + changes.get((cb, cr), 0)
            colour = [y + ((91881 * cr + 32768) >> 16), y + green, y + ((116130 * cb + 32768) >> 16)]
            a, b, c = exceptions.get(number, (0, 0, 0))
            red, green, blue = ((cut(v) + add) % 256 for v, add in zip(colour, (a, b, c), strict=True))
            if (a, c) == (0, 0) and b in (1, 255):
                changes[cb, cr] = changes.get((cb, cr), 0) + (1 if b == 1 else -1)
            row[i : i + 3] = (red, green, blue) if colours == 1 else (blue, green, red)
            number += 1
        made.append(bytes(row))
    return made
