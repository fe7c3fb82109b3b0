"""The output of a salvage, with holes, zeros or nothing in place of lost bytes."""

from typing import BinaryIO

from squeeze.codecs.stream.container import MAX_BLOCK
from squeeze.errors import LimitError, OptionError
from squeeze.system.limits import Limits
from squeeze.system.sparse import SparseSink

MISSING = ("zeros", "skip")
_MOST_A_BYTE = 1 << 10  # most lost bytes per byte of the file, for more than a block


class Salvaged:
    """A sink for restored bytes; `place` counts the bytes of the original, lost ones included."""

    def __init__(self, sink: BinaryIO | None, limits: Limits, missing: str, coded: int):
        """Prepare the output.

        Args:
            sink: the file to write, or None.
            limits: of output.
            missing: "zeros" or "skip".
            coded: bytes of the whole .sqz file.

        Raises:
            OptionError: if `missing` is another word.
        """
        if missing not in MISSING:
            raise OptionError(f"missing must be one of {', '.join(MISSING)}, got {missing!r}")
        self._sink, self._limits, self._skips = None if sink is None else SparseSink(sink), limits, missing == "skip"
        self._coded, self._written, self._lost = coded, 0, 0
        self.place = 0

    def expect(self, length: int) -> None:
        """Check the raw length of all blocks against the limit, whichever of them are lost.

        Raises:
            LimitError: if it is too much.
        """
        if not self._skips:
            self.need(length)

    def may_miss_too_much(self, total: int) -> bool:
        """Return whether `miss` could raise LimitError in a file whose blocks hold `total` bytes."""
        return not self._skips and self._is_too_much(total)

    def _is_too_much(self, missing: int) -> bool:
        return self._limits.output is None and missing > max(MAX_BLOCK, _MOST_A_BYTE * self._coded)

    def need(self, length: int) -> None:
        """Check `length` more bytes against the limit.

        Raises:
            LimitError: if they are too much.
        """
        self._limits.need_output(self._written + length)

    def write(self, piece: bytes | memoryview) -> None:
        self.need(len(piece))
        self.place += len(piece)
        self._written += len(piece)
        if self._sink is not None:
            self._sink.write(piece)

    def miss(self, length: int) -> None:
        """Pass over lost bytes.

        Raises:
            LimitError: if they are far more than such a file may have held, unless a limit of output allows them.
        """
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
        """Extend the file over its last hole, and return the bytes written, holes included."""
        if self._sink is not None:
            self._sink.finish()
        return self._written
