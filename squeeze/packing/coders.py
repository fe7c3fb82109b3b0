"""Codings that code the bytes of a tensor themselves, one class each."""

from squeeze.checkpoint.ggml_types import BLOCKS
from squeeze.checkpoint.safetensors import Bytes
from squeeze.errors import DamagedError
from squeeze.packing.coding import Coding, Form, Subject, needed
from squeeze.packing.tensors import archive, fixed, floats, text, ulps
from squeeze.packing.tensors.content import Content
from squeeze.packing.tensors.fixed import DecodedFixed
from squeeze.packing.tensors.float_writer import Writer, copy
from squeeze.packing.tensors.floats import Decoded

__all__ = ["Archive", "Fixed", "Rans", "Stored", "Text", "Ulps"]

_LARGER = 1.03  # times the size of rANS: the limit for codes of fixed length


class Stored(Coding):
    """The bytes without compression."""

    is_stored = in_segments = True
    copies = 1

    def encode(self, subject: Subject, writer: Writer) -> int:
        return copy(subject.content, writer, 0, subject.threads)

    def decode(self, payload: Bytes, form: Form, base: Bytes | None, threads: int) -> Bytes:
        if payload.size != form.size:
            raise DamagedError("the payload has another size than the tensor")
        return payload

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        if payload.size != form.size:
            raise DamagedError("the payload has another size than the tensor")
        return payload


class Fixed(Coding):
    """Codes of a fixed length, the fastest coding (tensors/fixed.py)."""

    in_segments = stays_coded = cpu_only = True
    copies = 2

    def takes(self, dtype: str) -> bool:
        return dtype in fixed.DTYPES

    def encode(self, subject: Subject, writer: Writer) -> int:
        size = fixed.write(subject.content, subject.form.dtype, writer, subject.threads)
        return size if size and self._is_short(subject, size) else 0

    def _is_short(self, subject: Subject, size: int) -> bool:
        if subject.form.dtype in ("BF16", "F16") and fixed.has_noise(subject.content):
            return True
        return 8 * size <= _LARGER * subject.bits

    def decode(self, payload: Bytes, form: Form, base: Bytes | None, threads: int) -> Bytes:
        return fixed.decode(payload, form.dtype, form.size, threads)

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        return DecodedFixed(payload, form.dtype, form.size)


class Rans(Coding):
    """Entropy coding with frequency tables (tensors/floats.py)."""

    in_segments = stays_coded = True
    copies = 2

    def encode(self, subject: Subject, writer: Writer) -> int:
        size = subject.plan.write(writer) if subject.plan else 0
        return size if size < subject.content.size else 0

    def decode(self, payload: Bytes, form: Form, base: Bytes | None, threads: int) -> Bytes:
        return floats.decode(payload, form.dtype, form.size, threads)

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        return Decoded(payload, form.dtype, form.size)


class Text(Coding):
    """Texts, and masks and indices that repeat themselves (tensors/text.py)."""

    is_slow = True

    def takes(self, dtype: str) -> bool:
        return dtype not in BLOCKS

    def encode(self, subject: Subject, writer: Writer) -> int:
        return text.write(subject.content, writer, subject.threads) if subject.is_text else 0

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        return text.DecodedText(payload, form.size)


class Archive(Coding):
    """Entropy coding with mixed contexts, the smallest coding (tensors/archive.py)."""

    @property
    def is_slow(self) -> bool:
        return True

    def encode(self, subject: Subject, writer: Writer) -> int:
        form = subject.form
        return archive.write(subject.content, form.dtype, writer, subject.threads, form.columns)

    def decode(self, payload: Bytes, form: Form, base: Bytes | None, threads: int) -> Bytes:
        return archive.decode(payload, form.dtype, form.size, threads)

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        return archive.decoded(payload, form.dtype, form.size, threads)


class Ulps(Coding):
    """Differences from the base in units of the last place (tensors/ulps.py)."""

    is_difference = True
    takes_bundles = False

    def takes(self, dtype: str) -> bool:
        return dtype in ulps.MANTISSAS

    def encode(self, subject: Subject, writer: Writer) -> int:
        assert subject.base is not None
        size = ulps.write(subject.content, subject.base, subject.form.dtype, writer, subject.threads)
        return size if size and 8 * size <= min(subject.difference.bits, subject.bits) else 0

    def decode(self, payload: Bytes, form: Form, base: Bytes | None, threads: int) -> Bytes:
        return ulps.decode(payload, needed(base, form), form.dtype, threads)

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        return ulps.DecodedUlps(payload, needed(base, form), form.dtype)
