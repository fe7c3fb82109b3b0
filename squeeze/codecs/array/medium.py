"""Arrays of numbers as a medium: where they are in data, and which of their models a level uses."""

import numpy as np

from squeeze.codecs.array import formats
from squeeze.codecs.array.layout import Layout
from squeeze.codecs.content import Content, Medium, Progress, Region

__all__ = ["Array"]

_FULL = 4  # the first level with the whole model


class Array(Medium):
    """Integers and floats of 16, 32 and 64 bits that follow each other, or in columns."""

    block, kind, module = 11, "array", "squeeze.codecs.array.coder"

    def find(self, data: np.ndarray) -> list[Region]:
        return [(start, end, Content(self.kind, 0, form)) for start, end, form in formats.find(data)]

    def sample(self, size: int, content: Content, most: int) -> Region:
        form = Layout(*content.form)
        wanted = max(most // form.row, 1) * form.row
        if size - form.prefix <= wanted:
            return 0, size, content
        start = form.prefix + (size - form.prefix - wanted) // 2 // form.row * form.row
        return start, start + wanted, Content(self.kind, 0, form._replace(prefix=0))

    def encode(self, data: np.ndarray, content: Content, level: int, progress: Progress = None) -> bytes | None:
        payload: bytes | None = self.coder().encode(data, Layout(*content.form), level >= _FULL, progress)
        return payload
