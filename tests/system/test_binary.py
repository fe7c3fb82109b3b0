"""All is read and written, whatever a file does at a time."""

import io
import os
import threading
import time

import numpy as np
import pytest

from squeeze.system.binary import flush, read_some, write_all


class Little(io.RawIOBase):
    """Takes a few bytes at a time."""

    def __init__(self):
        self.taken = b""

    def write(self, data):
        self.taken += bytes(data[:3])
        return min(len(data), 3)


class Silent:
    """Takes all, and does not tell."""

    def __init__(self):
        self.taken = b""

    def write(self, data):
        self.taken += bytes(data)


@pytest.mark.parametrize("make", [Little, Silent])
def test_every_byte_is_written(make):
    sink = make()
    for data in (
        b"",
        b"0123456789",
        memoryview(b"abcd"),
        np.arange(5, dtype=np.uint8).data,
        np.zeros(0, np.uint8).data,
    ):
        assert write_all(sink, data) == memoryview(data).nbytes
    assert sink.taken == b"0123456789abcd\x00\x01\x02\x03\x04"


@pytest.mark.parametrize("buffering", [0, 4096])
def test_pipes_that_do_not_block_are_waited_for(buffering):
    data = os.urandom(300_000)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    came = []

    def read():
        with os.fdopen(reading, "rb", buffering=buffering) as source:
            while piece := read_some(source, 10_000):
                came.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(writing, "wb", buffering=buffering) as sink:
        assert write_all(sink, data[:100]) == 100
        flush(sink)
        time.sleep(0.1)  # in which there is nothing to read
        assert write_all(sink, data[100:]) == len(data) - 100
        flush(sink)
    reader.join()
    assert b"".join(came) == data


def test_a_source_that_says_nothing_and_is_no_file_is_an_error():
    class Nothing(io.RawIOBase):
        def readable(self):
            return True

        def read(self, size=-1):
            return None

    with pytest.raises(OSError, match="fileno"):
        read_some(Nothing(), 1)
