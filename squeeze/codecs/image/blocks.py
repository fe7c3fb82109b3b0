"""Images as the blocks of JPEG that they were decoded from: how these are stored, coded, and made pixels again.

A luminance and two colour differences each have blocks of 8 by 8 pixels with quantisation steps. The first blocks may
be cut off, in an image that was cropped. Where the blocks do not make a pixel exactly, the image says by how much.
"""

import io
from typing import NamedTuple

import numpy as np

from squeeze.codecs.image.layout import Layout
from squeeze.codecs.image.sampling import WHOLE, Sampling, enlarge
from squeeze.codecs.jpeg import state
from squeeze.codecs.jpeg.layout import Component, Frame
from squeeze.codecs.jpeg.model import code_row
from squeeze.codecs.jpeg.transform import INVERSE, fill_plane, wide_of
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly

__all__ = ["Plane", "add", "code", "draw", "memory", "read", "to_bytes"]

_SMOOTH, _TOP, _LEFT, _DOWN, _ACROSS = 1, 2, 4, 8, 16  # bits of a byte


class Plane(NamedTuple):
    """The blocks of a luminance, or of a colour difference.

    Attributes:
        steps: int64 [64], their quantisation steps, 1 to 255, in rows.
        top, left: Rows and columns of the first blocks that the plane does not have, 0 to 7.
        sampling: How the plane is made larger.
        coefficients: int16 [blocks, 64], in rows.
    """

    steps: np.ndarray
    top: int
    left: int
    sampling: Sampling
    coefficients: np.ndarray

    def size(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Return the blocks down and across, for the shape of the image."""
        height, width = self.sampling.small(*shape)
        return wide_of(height, self.top), wide_of(width, self.left)


def draw(plane: Plane, shape: tuple[int, int]) -> np.ndarray:
    """Return the uint8 pixels of a plane, of the shape of its image."""
    small = np.zeros(plane.sampling.small(*shape), np.uint8)
    work = np.zeros((2, 64), np.int64)
    fill_plane(small, plane.coefficients, plane.steps, plane.top, plane.left, INVERSE, work)
    return enlarge(small, shape, plane.sampling)


def code(
    planes: tuple[Plane, ...], shape: tuple[int, int], coder: np.ndarray, coded: np.ndarray, decoding: bool
) -> bool:
    """Code the coefficients of planes, in either direction, as those of a JPEG image.

    Args:
        planes: in their order; decoding writes their coefficients.
        shape: of the image.
        coder, coded: the arithmetic coder, and uint8 its bytes.
        decoding: the direction.

    Returns:
        Whether there was room for the coded bytes, or enough of them.
    """
    components, first = list[Component](), 0
    for number, plane in enumerate(planes):
        high, wide = plane.size(shape)
        components.append(Component(number, 1, 1, wide, high, wide, high, first, plane.steps))
        first += high * wide
    coefficients = np.concatenate([plane.coefficients for plane in planes])
    model = state.fresh(Frame(False, tuple(components), ()), coefficients)
    for index, component in enumerate(components):
        rows = state.plane(tuple(components), index)
        if not all(code_row(model, coder, coded, rows, y, decoding) for y in range(component.high)):
            return False
        begin, end = component.first, component.first + component.high * component.wide
        planes[index].coefficients[:] = coefficients[begin:end]
    return True


def add(rows: np.ndarray, form: Layout, planes: list[np.ndarray]) -> None:
    """Add pixels of planes to those of an image, modulo 256.

    Args:
        rows: uint8 [rows * stride], which is changed.
        form: the layout of the image.
        planes: uint8 [rows, width] of each plane.
    """
    pixels = rows.reshape(-1, form.stride)[:, : form.row]
    for number, plane in enumerate(planes):
        pixels[:, number :: form.pixel] += plane


def to_bytes(planes: tuple[Plane, ...]) -> bytes:
    """Return what `read` reads, without the steps."""
    parts = []
    for plane in planes:
        how = plane.sampling
        flags = _SMOOTH * how.smooth | _TOP * how.top | _LEFT * how.left
        flags |= _DOWN * (how.down == 2) | _ACROSS * (how.across == 2)
        parts.append(bytes([flags, 8 * plane.top + plane.left]))
    return b"".join(parts)


def read(file: io.BytesIO, count: int, shape: tuple[int, int]) -> list[Plane]:
    """Read planes of an image of a shape. Their steps are 1, and their coefficients zero.

    Raises:
        DamagedError: if there are no such planes.
    """
    planes = []
    for _ in range(count):
        flags, cut = read_exactly(file, 2)
        down, across = 1 + bool(flags & _DOWN), 1 + bool(flags & _ACROSS)
        top, left, smooth = int(bool(flags & _TOP)), int(bool(flags & _LEFT)), flags & _SMOOTH
        sampling = Sampling(down, across, top, left, smooth)
        if (
            flags >= 2 * _ACROSS
            or cut > 63
            or top >= down
            or left >= across
            or (down * across == 1 and sampling != WHOLE)
        ):
            raise DamagedError("the blocks of an image are impossible: the file is damaged")
        plane = Plane(np.ones(64, np.int64), cut // 8, cut % 8, sampling, np.zeros((0, 64), np.int16))
        high, wide = plane.size(shape)
        planes.append(plane._replace(coefficients=np.zeros((high * wide, 64), np.int16)))
    return planes


def memory(length: int) -> int:
    """Estimate the bytes of coding the blocks of an image of `length` bytes."""
    return state.memory(length // 16 + 64) + 4 * length
