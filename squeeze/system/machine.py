"""Cores and memory of this machine: how much is available, how much this process holds, and how to give memory back."""

import ctypes
import mmap
import os
import sys
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MappedFiles", "available_cores", "free_memory", "resident_memory", "trim_memory"]

# The limit of a control group and what it uses, by versions 2 and 1 of Linux's cgroups.
_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


def available_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def free_memory() -> int:
    """Return the bytes of memory that are free or reclaimable, at most what the container may still allocate."""
    return min([_free_on_machine(), *_free_in_container()])


def _free_on_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _free_in_container() -> list[int]:
    remaining = []
    for limit, used in _CGROUPS:
        try:
            remaining.append(max(int(limit.read_text()) - int(used.read_text()), 0))
        except (OSError, ValueError):  # no such group, or no limit: "max"
            continue
    return remaining


def resident_memory() -> int | None:
    """Return the bytes of this process that are in memory, or None if the system has no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def trim_memory() -> None:
    """Return memory that Python and torch have freed to the system (glibc only; elsewhere this does nothing).

    glibc keeps freed memory below a block that is still in use.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


class MappedFiles:
    """The private file mappings of this process that nobody has written to, as of the creation of this object.

    Pages that were read count as memory of the process while the file is mapped. A released page is read from the file
    again when it is next used. On systems other than Linux there are no mappings to release.
    """

    def __init__(self) -> None:
        self._ranges = sorted(_unwritten_mappings()) if sys.platform == "linux" else []
        self._starts = [start for start, _ in self._ranges]

    def release(self, address: int, size: int) -> None:
        """Release the whole pages among `size` bytes from `address` on, if a mapping holds them all."""
        place = bisect_right(self._starts, address) - 1
        if place < 0 or address + size > self._ranges[place][1]:
            return
        first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            madvise = ctypes.CDLL(None).madvise
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), ctypes.c_int(mmap.MADV_DONTNEED))


def _unwritten_mappings() -> Iterator[tuple[int, int]]:
    """Yield the start and end address of each mapping."""
    try:
        lines = Path("/proc/self/smaps").read_text(errors="replace").splitlines()
    except OSError:
        return
    start = end = 0
    for line in lines:
        word, *rest = line.split(maxsplit=5)
        if not word.endswith(":"):  # the first line of a mapping: from-to, permissions, offset, device, inode, path
            begin, _, stop = word.partition("-")
            is_file = rest[0].endswith("p") and rest[3] != "0"
            start, end = (int(begin, 16), int(stop, 16)) if is_file else (0, 0)
        elif word == "Anonymous:" and end and rest[0] == "0":  # bytes that were written to are copies
            yield start, end
