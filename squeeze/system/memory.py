"""The memory that this process has, and what Python and torch have freed and the allocator keeps."""

import ctypes
import os
import sys
from pathlib import Path

__all__ = ["resident", "trim"]


def resident() -> int | None:
    """Bytes of this process that are in memory; None where the system has no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def trim() -> None:
    """Give it back to the system. glibc keeps what lies below something that is still in use; elsewhere nothing is
    done."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
