"""Images that a JPEG decoder made: they are coded as what they were made of, colours and blocks, and made again."""

from typing import NamedTuple

import numpy as np

from squeeze.codecs.image import blocks, colours
from squeeze.codecs.image.blocks import Plane
from squeeze.codecs.image.layout import Layout
from squeeze.codecs.image.origin import find_planes, refine

__all__ = ["Converted", "convert", "restore"]

_LEAST_EXACT = 0.5  # share of pixels that blocks make
_REPEATS = 4  # of finding blocks by pixels, and those pixels that were cut off by blocks


class Converted(NamedTuple):
    """An image as what it was made of.

    Attributes:
        form: Its layout, which says so.
        exceptions: The pixels that its colours do not make, coded.
        planes: Its blocks, or none.
    """

    form: Layout
    exceptions: bytes = b""
    planes: tuple[Plane, ...] = ()


def convert(parts: list[colours.Part], form: Layout, with_blocks: bool) -> Converted:
    """Replace the rows of an image by what they were made of, if a JPEG decoder made them.

    Args:
        parts: its rows without filters, or those of each pass. They are changed.
        form: its layout.
        with_blocks: look for blocks, too.
    """
    before = parts[0][0].copy() if parts else np.zeros(0, np.uint8)
    found = _with_colours(parts, form)
    if not with_blocks or len(parts) != 1 or not found.form.may_have_blocks:
        return found
    data, stride = parts[0]
    if data.size % stride:
        return found
    is_known = _is_known(before, found.form)
    planes = find_planes(_planes(data, found.form), is_known) or []
    best, rows, least = found, data.copy(), int(_LEAST_EXACT * is_known.size)
    for _ in range(_REPEATS if planes else 0):
        pixels = [blocks.draw(plane, is_known.shape) for plane in planes]
        exceptions: bytes | None = b""
        if found.form.colours:
            data[:] = before
            exceptions = colours.convert(parts, found.form, np.stack(pixels, axis=-1).reshape(-1, 3))
        made = _planes(data, found.form)
        is_exact = np.all([one == other for one, other in zip(pixels, made, strict=True)], axis=0)
        exact = int(np.count_nonzero(is_exact))
        if exceptions is None or exact <= least:
            break
        least = exact
        rows[:] = data
        blocks.add(rows, found.form, [-plane for plane in pixels])
        best = Converted(found.form._replace(blocks=1), exceptions, tuple(planes))
        planes = refine(planes, made, is_known | is_exact)
    data[:] = rows
    return best


def restore(parts: list[colours.Part], found: Converted) -> None:
    """Make the rows of an image again.

    Raises:
        DamagedError: if the exceptions of its colours are invalid.
    """
    if found.planes:
        data, stride = parts[0]
        shape = data.size // stride, found.form.width
        blocks.add(data, found.form, [blocks.draw(plane, shape) for plane in found.planes])
    if found.form.colours:
        colours.restore(parts, found.form, found.exceptions)


def _with_colours(parts: list[colours.Part], form: Layout) -> Converted:
    form = form._replace(colours=colours.find_order(parts[-1], form) if parts else 0)
    if form.colours:
        before = [data.copy() for data, _ in parts]
        exceptions = colours.convert(parts, form)
        if exceptions is not None:
            return Converted(form, exceptions)
        for (data, _), kept in zip(parts, before, strict=True):
            data[:] = kept
    return Converted(form._replace(colours=0))


def _is_known(data: np.ndarray, form: Layout) -> np.ndarray:
    """Return where no colour of a pixel may have been cut off, bool [rows, width]."""
    if not form.colours:
        return np.ones((data.size // form.stride, form.width), np.bool_)
    inside = [(plane > 0) & (plane < 255) for plane in _planes(data, form)]
    return inside[0] & inside[1] & inside[2]


def _planes(data: np.ndarray, form: Layout) -> list[np.ndarray]:
    """Return the planes of the pixels of all rows, uint8 [rows, width] each."""
    pixels = data.reshape(-1, form.stride)[:, : form.row]
    return [np.ascontiguousarray(pixels[:, k :: form.pixel]) for k in range(min(form.channels, 3))]
