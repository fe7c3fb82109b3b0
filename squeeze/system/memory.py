"""Memory that Python and torch have freed, and the allocator keeps."""

import ctypes
import sys

__all__ = ["trim"]


def trim() -> None:
    """Give it back to the system. glibc keeps what lies below something that is still in use; elsewhere nothing is
    done."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
