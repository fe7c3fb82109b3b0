"""Pages of mapped files: those that were read count as this process's memory for as long as the file is mapped."""

import ctypes
import mmap
import sys
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MappedFiles"]


class MappedFiles:
    """Private mappings of files into this process, as it was when this was made, which nobody had written to: what is
    let go of them is read again from the file when it is asked for. None where the system is not Linux."""

    def __init__(self) -> None:
        self._ranges = sorted(_unwritten()) if sys.platform == "linux" else []
        self._starts = [start for start, _ in self._ranges]

    def release(self, address: int, size: int) -> None:
        """Let go of the whole pages in these bytes, if such a mapping holds them."""
        place = bisect_right(self._starts, address) - 1
        if place < 0 or address + size > self._ranges[place][1]:
            return
        first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            madvise = ctypes.CDLL(None).madvise
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), ctypes.c_int(mmap.MADV_DONTNEED))


def _unwritten() -> Iterator[tuple[int, int]]:
    """From and to which address each lies."""
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
