"""Coding a series of numbers, such as sound, in either direction: a prefix, the numbers, and a last part of one.

The media of such series have a layout, a model and a compiled step of their own.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from squeeze.codecs.content import Progress
from squeeze.errors import DamagedError
from squeeze.numerics.bitmodels import adaptive, coder as arithmetic
from squeeze.system.binary import read_exactly

__all__ = ["Series"]

_STEP = 1 << 14  # numbers between two reports of progress


@dataclass(frozen=True)
class Series:
    """The coder of a medium, with the parts that it has of its own.

    Attributes:
        name: That of the medium in messages, with its article.
        layout: The class of its layouts, with `prefix`, `width`, `to_bytes` and `read`.
        build: Builds the model of some numbers with a layout, whole or not.
        numbers_of: Returns the numbers of a model, int64, with those before the first left out.
        code: The compiled step: codes `count` numbers from `first` on, and returns whether there was room.
        from_bytes: Returns the numbers of bytes, int64.
        to_bytes: The inverse.
    """

    name: str
    layout: Any
    build: Callable[[int, Any, bool], Any]
    numbers_of: Callable[[Any], np.ndarray]
    code: Callable[..., bool]
    from_bytes: Callable[[np.ndarray, Any], np.ndarray]
    to_bytes: Callable[[np.ndarray, Any], np.ndarray]

    def encode(self, data: np.ndarray, form: Any, full: bool, progress: Progress = None) -> bytes | None:
        """Return the payload of data, or None if it is not shorter.

        Args:
            data: uint8 [n], the prefix and the numbers.
            form: their layout.
            full: use the whole model.
            progress: is called with the number of bytes coded since its last call.
        """
        prefix, body, rest = _cut(data, form)
        m = self.build(body.size // form.width, form, full)
        self.numbers_of(m)[:] = self.from_bytes(body, form)
        coder, coded = np.zeros(3, np.uint64), np.zeros(data.size + 4 * arithmetic.SPARE, np.uint8)
        arithmetic.start_encoder(coder)
        if not self._code_all(m, [prefix.copy(), rest.copy()], form.width, (coder, coded, False), progress):
            return None
        payload = bytes([full]) + form.to_bytes() + coded[: arithmetic.finish_encoder(coder, coded)].tobytes()
        return payload if len(payload) < data.size else None

    def decode(self, payload: bytes, length: int, progress: Progress = None) -> np.ndarray:
        """Return the uint8 [length] of a payload.

        Raises:
            DamagedError: if the payload is invalid.
        """
        file = io.BytesIO(payload)
        full = read_exactly(file, 1)[0]
        if full > 1:
            raise self._damaged()
        form = self.layout.read(file, length)
        data = np.zeros(length, np.uint8)
        prefix, body, rest = _cut(data, form)
        m = self.build(body.size // form.width, form, bool(full))
        coder, coded = np.zeros(3, np.uint64), np.frombuffer(bytearray(file.read()), np.uint8)
        arithmetic.start_decoder(coder, coded)
        if not self._code_all(m, [prefix, rest], form.width, (coder, coded, True), progress):
            raise self._damaged()
        body[:] = self.to_bytes(self.numbers_of(m), form)
        return data

    def _code_all(
        self, m: Any, ends: list[np.ndarray], width: int, code: tuple[np.ndarray, np.ndarray, bool], progress: Progress
    ) -> bool:
        """Code the bytes around the numbers, and these, by (coder, coded, decoding); return what `code` does."""
        coder, coded, decoding = code
        entries = np.full(1 << 16 if sum(part.size for part in ends) else 0, adaptive.EVEN, np.uint32)
        for part in ends:
            if not adaptive.code_bytes(part, coder, coded, entries, decoding):
                return False
            if progress:
                progress(part.size)
        numbers = self.numbers_of(m).size
        for first in range(0, numbers, _STEP):
            count = min(_STEP, numbers - first)
            if not self.code(m, coder, coded, first, count, decoding):
                return False
            if progress:
                progress(count * width)
        return True

    def _damaged(self) -> DamagedError:
        return DamagedError(f"the coded bytes of {self.name} are impossible: the file is damaged")


def _cut(data: np.ndarray, form: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the prefix, the bytes of whole numbers, and those after them."""
    end = form.prefix + (data.size - form.prefix) // form.width * form.width
    return data[: form.prefix], data[form.prefix : end], data[end:]
