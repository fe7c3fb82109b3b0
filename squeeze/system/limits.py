"""Limits on the memory and output that a file may require, which are checked before anything is allocated."""

from dataclasses import dataclass
from functools import cached_property

from squeeze.errors import LimitError
from squeeze.system.machine import free_memory

__all__ = ["Limits"]

_LEAST = 2 << 30  # bytes of the default memory limit, even if less is free


@dataclass(frozen=True)
class Limits:
    """Limits on what decoding a file may cost. A file that needs more is refused with LimitError.

    Args:
        memory: Most bytes of memory, or None for half of the free memory, at least 2 GiB.
        output: Most bytes of output, or None for no limit.

    Example:
        squeeze.decompress(data, limits=squeeze.Limits(memory=1 << 30, output=1 << 20))
    """

    memory: int | None = None
    output: int | None = None

    @cached_property
    def _most_memory(self) -> int:
        return max(free_memory() // 2, _LEAST) if self.memory is None else self.memory

    def allows_memory(self, size: int) -> bool:
        """Return whether `size` bytes of memory are within the limit."""
        if self.memory is None and size <= _LEAST:
            return True  # without asking how much is free
        return size <= self._most_memory

    def need_memory(self, size: int, subject: str) -> None:
        """Raise LimitError if `size` bytes of memory exceed the limit. `subject` begins the message: "the block"."""
        if not self.allows_memory(size):
            raise LimitError(
                f"{subject} needs {size:,} bytes of memory, and the limit is {self._most_memory:,}: "
                "raise it with `limits.memory`"
            )

    def need_output(self, size: int) -> None:
        """Raise LimitError if an output of `size` bytes in total exceeds the limit."""
        if self.output is not None and size > self.output:
            over = f"{size:,} bytes or more would be written, and the limit is {self.output:,}"
            raise LimitError(f"{over}: raise it with `limits.output`")
