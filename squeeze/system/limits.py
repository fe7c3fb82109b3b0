"""How much memory and how many bytes of output a file from anywhere may cost: asked before anything is taken."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from squeeze.errors import LimitError

__all__ = ["Limits", "free_memory"]

_LEAST = 2 << 30  # bytes of the default, on a machine with little memory free
_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


@dataclass(frozen=True)
class Limits:
    """memory: bytes that reading a file may take; None for half of the memory that is free, at least 2 GiB. output:
    bytes that may come out; None for any number. A file that claims more is refused before it costs anything."""

    memory: int | None = None
    output: int | None = None

    @cached_property
    def _most_memory(self) -> int:
        return max(free_memory() // 2, _LEAST) if self.memory is None else self.memory

    def allows_memory(self, size: int) -> bool:
        """Whether so many bytes may be taken."""
        if self.memory is None and size <= _LEAST:
            return True  # without a look at what is free
        return size <= self._most_memory

    def need_memory(self, size: int, subject: str) -> None:
        """Raises LimitError where `size` bytes, which `subject`, the start of a sentence, takes, are not allowed."""
        if not self.allows_memory(size):
            raise LimitError(
                f"{subject} needs {size:,} bytes of memory, and the limit is {self._most_memory:,}: "
                "raise it with `limits.memory`"
            )

    def need_output(self, size: int) -> None:
        """Raises LimitError where `size` bytes in all are to come out, and fewer may."""
        if self.output is not None and size > self.output:
            over = f"{size:,} bytes or more would be written, and the limit is {self.output:,}"
            raise LimitError(f"{over}: raise it with `limits.output`")


def free_memory() -> int:
    """Bytes of memory that are free, or can be made so; no more than the container may still take."""
    return min([_of_machine(), *_of_container()])


def _of_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _of_container() -> list[int]:
    """What is left of a control group's limit, where there is one."""
    remaining = []
    for limit, used in _CGROUPS:
        try:
            remaining.append(max(int(limit.read_text()) - int(used.read_text()), 0))
        except (OSError, ValueError):  # no such group, or no limit: "max"
            continue
    return remaining
