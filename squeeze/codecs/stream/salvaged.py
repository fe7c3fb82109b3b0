"""Where what a salvage restores goes, and what stands there for what is missing: holes, zeros, or nothing."""

from typing import BinaryIO

from squeeze.codecs.stream.container import MAX_BLOCK
from squeeze.errors import LimitError, OptionError
from squeeze.system.limits import Limits
from squeeze.system.sparse import SparseSink

MISSING = ("zeros", "skip")
_MOST_A_BYTE = 1 << 10  # missing bytes for each byte of the file, beyond those of one block


class Salvaged:
    """`place` counts the bytes of what was compressed, missing ones too."""

    def __init__(self, sink: BinaryIO | None, limits: Limits, missing: str, coded: int):
        """coded: bytes of the whole file. Raises OptionError where `missing` is none of MISSING."""
        if missing not in MISSING:
            raise OptionError(f"missing {missing!r} is unknown: choose from {', '.join(MISSING)}")
        self._sink, self._limits, self._skips = None if sink is None else SparseSink(sink), limits, missing == "skip"
        self._coded, self._written, self._lost = coded, 0, 0
        self.place = 0

    def expect(self, length: int) -> None:
        """Raises LimitError where blocks of so many bytes in all are too much, whichever of them are missing."""
        if not self._skips:
            self.need(length)

    def may_miss_too_much(self, total: int) -> bool:
        """Return whether `miss` could raise LimitError in a file whose blocks hold `total` bytes."""
        return not self._skips and self._is_too_much(total)

    def _is_too_much(self, missing: int) -> bool:
        return self._limits.output is None and missing > max(MAX_BLOCK, _MOST_A_BYTE * self._coded)

    def need(self, length: int) -> None:
        """Raises LimitError where so many bytes more are not to be written."""
        self._limits.need_output(self._written + length)

    def write(self, piece: bytes | memoryview) -> None:
        self.need(len(piece))
        self.place += len(piece)
        self._written += len(piece)
        if self._sink is not None:
            self._sink.write(piece)

    def miss(self, length: int) -> None:
        """Pass by bytes that are missing. Raises LimitError where they are far more than such a file may have held,
        unless a limit of the output says how many may be."""
        self.place += length
        if self._skips:
            return
        self._lost += length
        if self._is_too_much(self._lost):
            raise LimitError(
                f"zeros for {self._lost:,} missing bytes or more are too many for a file of {self._coded:,}: "
                "leave them out with `missing='skip'`, or allow them with `limits.output`"
            )
        self.need(length)
        self._written += length
        if self._sink is not None:
            self._sink.skip(length)

    def finish(self) -> int:
        """Make the last hole part of the file; bytes written, holes too."""
        if self._sink is not None:
            self._sink.finish()
        return self._written
