"""Reading and writing all that is asked for: files without a buffer, such as standard output of `python -u`, may write
less than they are given, and pipes that do not block may do nothing yet."""

import io
import select
from typing import Any, BinaryIO

__all__ = ["flush", "read_some", "write_all"]


def read_some(source: BinaryIO, size: int) -> bytes:
    """At least one byte and at most `size`, and nothing at the end alone: what has not come yet is waited for."""
    while (piece := source.read(size)) is None:
        _wait(source, select.POLLIN)
    return piece


def write_all(sink: BinaryIO, data: Any) -> int:
    """Write every byte of what has a buffer; how many those are. Raises OSError where the disk is full, and so on."""
    view, done = memoryview(data), 0
    if view.nbytes:  # an array of nothing cannot be cast
        view = view.cast("B")
    while done < view.nbytes:
        try:
            written = sink.write(view[done:] if done else data)
        except BlockingIOError as error:
            written = error.characters_written
            _wait(sink, select.POLLOUT)
        if written is None:
            if not isinstance(sink, io.RawIOBase):
                break  # it does not tell, and is no file of the system's
            _wait(sink, select.POLLOUT)
        else:
            done += written
    return view.nbytes


def flush(sink: BinaryIO) -> None:
    """Hand on what waits in the buffer of a file."""
    while True:
        try:
            sink.flush()
        except BlockingIOError:
            _wait(sink, select.POLLOUT)
        else:
            return


def _wait(file: BinaryIO, event: int) -> None:
    """Until a file that does not block can be read or written. Raises OSError where it is none of the system's."""
    waiting = select.poll()
    waiting.register(file.fileno(), event)
    waiting.poll()
