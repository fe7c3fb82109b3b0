"""Images as a medium: where they are in data, and which of their models a level uses."""

import numpy as np

from squeeze.codecs.content import Content, Medium, Progress, Region
from squeeze.codecs.image import formats
from squeeze.codecs.image.layout import LIGHT_MARK, OF_TWO_VALUES, Layout
from squeeze.codecs.image.raw import find_raw

__all__ = ["Image"]

_LEAST_OF_TWO = 1 << 12  # bytes of an image of two values that is not joined with others
_LEAST_ALONE = 1 << 15  # bytes of an image that is not joined with others if it may have blocks of its own
_LARGE = 1 << 20  # bytes of an image from which on level 1 has a smaller model
_FULL = 4  # the first level with the whole model


class Image(Medium):
    """Pixels: the data of PNG images, images without compression, and rows of bits without a header."""

    block, kind, module = 6, "image", "squeeze.codecs.image.coder"

    def find(self, data: np.ndarray) -> list[Region]:
        return [(start, end, Content(self.kind, 0, form)) for start, end, form in formats.find(data)]

    def guess(self, data: np.ndarray) -> Content | None:
        form = find_raw(data)
        return None if form is None else Content(self.kind, 0, form)

    def joins(self, size: int, content: Content) -> bool:
        form = Layout(*content.form)
        is_alone = size >= _LEAST_ALONE and (form.may_be_converted or form.may_have_blocks)
        return not (form.filtered or form.height or form.prefix or size % form.stride or is_alone)

    def likeness(self, data: np.ndarray, content: Content) -> tuple[int, ...]:
        """Return the values of a larger image that has two: joined with other images it would lose its model."""
        form = Layout(*content.form)
        if form.bits != 8 or form.channels > 1 or data.size < _LEAST_OF_TWO:
            return ()
        values = np.flatnonzero(np.bincount(data))
        return tuple(values.tolist()) if values.size == 2 else ()

    def name_of(self, begin: bytes) -> str:
        return "image of two colours" if bytes([OF_TWO_VALUES]) <= begin[:1] < bytes([LIGHT_MARK]) else self.kind

    def sample(self, size: int, content: Content, most: int) -> Region:
        form = Layout(*content.form)
        row = form.stride + form.filtered
        rows, wanted = (size - form.prefix) // row, max(most // row, 8)
        if form.height or rows <= wanted or size <= most:
            return 0, size, content
        start = form.prefix + (rows - wanted) // 2 * row
        return start, start + wanted * row, Content(self.kind, 0, form._replace(prefix=0))

    def coded_size(self, data: np.ndarray, sample: Region, level: int) -> int:
        start, end, content = sample
        form = Layout(*content.form)
        if not form.filtered or end - start == data.size:
            return super().coded_size(data, sample, level)
        row = form.stride + form.filtered  # filters need all rows before
        return int(self.coder().size_of_rows(data, form, level >= _FULL, start // row, (end - start) // row))

    def encode(self, data: np.ndarray, content: Content, level: int, progress: Progress = None) -> bytes | None:
        form = Layout(*content.form)
        light = level == 1 and data.size >= _LARGE and not form.is_exact
        payload: bytes | None = self.coder().encode(data, form, level >= _FULL, progress, light)
        return payload
