"""Sounds as a medium: where they are in data, and which of their models a level uses."""

import numpy as np

from squeeze.codecs.content import Content, Medium, Progress, Region
from squeeze.codecs.sound import formats
from squeeze.codecs.sound.layout import Layout

__all__ = ["Sound"]

_FULL = 4  # the first level with the whole model


class Sound(Medium):
    """Integer samples of sound, without compression."""

    block, kind, module = 10, "sound", "squeeze.codecs.sound.coder"

    def find(self, data: np.ndarray) -> list[Region]:
        return [(start, end, Content(self.kind, 0, form)) for start, end, form in formats.find(data)]

    def sample(self, size: int, content: Content, most: int) -> Region:
        form = Layout(*content.form)
        wanted = max(most // form.frame, 1) * form.frame
        if size - form.prefix <= wanted:
            return 0, size, content
        start = form.prefix + (size - form.prefix - wanted) // 2 // form.frame * form.frame
        return start, start + wanted, Content(self.kind, 0, form._replace(prefix=0))

    def encode(self, data: np.ndarray, content: Content, level: int, progress: Progress = None) -> bytes | None:
        payload: bytes | None = self.coder().encode(data, Layout(*content.form), level >= _FULL, progress)
        return payload
