"""squeeze.open: any part of the content, and damage where it is read."""

import io
import os

import numpy as np
import pytest

import squeeze
from squeeze.codecs.stream import reader
from squeeze.codecs.stream.index import read_index
from tests.makers import inputs
from tests.makers.streams import WHOLE, of_both_forms, several


@pytest.fixture(scope="module", params=[several, of_both_forms])
def coded(request):
    return request.param()


def test_any_range_can_be_read(coded):
    generator = np.random.default_rng(0)
    with squeeze.open(io.BytesIO(coded)) as file:
        for _ in range(100):
            start, end = sorted(generator.integers(0, len(WHOLE) + 50, 2).tolist())
            assert file.seek(start) == start
            assert file.read(end - start) == WHOLE[start:end]


def test_it_is_a_file_object(coded, tmp_path):
    path = tmp_path / "file.sqz"
    path.write_bytes(coded)
    for argument in (path, str(path)):
        with squeeze.open(argument) as file:
            assert file.readable()
            assert file.seekable()
            assert not file.writable()
            assert file.seek(0, os.SEEK_END) == len(WHOLE)
            assert file.seek(-10, os.SEEK_CUR) == len(WHOLE) - 10
            assert file.read() == WHOLE[-10:]
            assert file.read(5) == b""
            file.seek(0)
            assert file.read() == WHOLE
            with pytest.raises((ValueError, OSError)):
                file.seek(-1)


def test_only_the_blocks_that_are_read_are_decoded(coded, monkeypatch):
    decoded = []
    right = reader.decode_block
    monkeypatch.setattr("squeeze.codecs.stream.reader.decode_block", lambda *a: decoded.append(1) or right(*a))
    with squeeze.open(io.BytesIO(coded)) as file:
        file.seek(1_100)
        file.read(5)
    assert len(decoded) == 1


def test_opening_what_is_no_sqz_file_closes_it(tmp_path):
    path = tmp_path / "file.sqz"
    path.write_bytes(b"hello")
    with pytest.raises(squeeze.FormatError):
        squeeze.open(path)
    with pytest.raises(FileNotFoundError):
        squeeze.open(tmp_path / "missing.sqz")


def test_damage_is_noticed_where_it_is_read_and_only_there(coded):
    blocks = read_index(io.BytesIO(coded))[0].blocks
    for hurt in blocks:
        damaged = bytearray(coded)
        damaged[hurt.coded_offset + hurt.coded_length // 2] ^= 16
        with squeeze.open(io.BytesIO(bytes(damaged))) as file:
            for block in blocks:
                file.seek(block.raw_offset)
                if block == hurt:
                    with pytest.raises(squeeze.DamagedError):
                        file.read(10)
                else:
                    assert file.read(10) == WHOLE[block.raw_offset : block.raw_offset + 10]


def test_a_range_of_what_is_stored_reads_no_more_than_its_mebibyte():
    data, places = inputs.random_bytes(9 << 20), []
    source = Noting(squeeze.compress(data, 1), places)
    with squeeze.open(source) as file:
        places.clear()
        file.seek(5_000_000)
        assert file.read(1_000) == data[5_000_000:5_001_000]
    assert sum(places) < 5 << 19


class Noting(io.BytesIO):
    """Notes how much each reading gives."""

    def __init__(self, data, sizes):
        super().__init__(data)
        self.sizes = sizes

    def read(self, size=-1):
        found = super().read(size)
        self.sizes.append(len(found))
        return found
