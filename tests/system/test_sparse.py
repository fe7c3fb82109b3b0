"""Holes of sparse files: neither read nor written, and every byte as it was."""

import io
import os
from random import Random

import pytest

import squeeze
from squeeze.system import sparse
from squeeze.system.sparse import SparseSink

BLOCK = 4096


@pytest.fixture
def image(tmp_path):
    """Write a sparse file with data on both sides of a hole and a hole at its end."""
    path = tmp_path / "image"
    with path.open("wb") as file:
        file.write(b"head" * 2000)
        file.seek(3 << 20)
        file.write(b"tail" * 2000)
        file.truncate(6 << 20)
    if path.stat().st_blocks * 512 >= path.stat().st_size:
        pytest.skip("this file system has no holes")
    return path


def written(path, *pieces):
    with path.open("wb") as file:
        sink = SparseSink(file)
        for piece in pieces:
            sink.write(piece)
        sink.finish()
    return path.read_bytes()


def test_a_hole_is_not_read(image):
    sizes = []

    class Counting(io.FileIO):
        def read(self, size=-1):
            data = super().read(size)
            sizes.append(len(data))
            return data

    with Counting(image) as file:
        source, found = sparse.reading(file), b""
        while piece := source.read(1 << 20):
            found += piece
    assert found == image.read_bytes()
    assert sum(sizes) < 1 << 20


def test_a_buffered_file_is_read_from_where_it_is(image):
    with image.open("rb") as file:
        file.read(5)
        source, found = sparse.reading(file), b""
        while piece := source.read(100_000):
            found += piece
    assert found == image.read_bytes()[5:]


@pytest.mark.parametrize("make", [lambda path: io.BytesIO(b"abc"), lambda path: path.open("rb")])
def test_what_is_not_sparse_is_read_as_it_is(tmp_path, make):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with make(path) as source:
        assert sparse.reading(source) is source


def test_blocks_of_zeros_become_holes(tmp_path):
    pieces = b"x" * 5000, bytes(1 << 20), b"y" * 3000, bytes(1 << 20)
    assert written(tmp_path / "file", *pieces) == b"".join(pieces)
    assert (tmp_path / "file").stat().st_blocks * 512 < 1 << 18


def test_any_pieces_give_their_bytes(tmp_path):
    random = Random(3)
    for _ in range(60):
        kinds = random.choices((bytes, os.urandom), k=random.randrange(5))
        pieces = [kind(random.choice((0, 1, 100, BLOCK - 1, BLOCK, 3 * BLOCK + 7))) for kind in kinds]
        assert written(tmp_path / "file", *pieces) == b"".join(pieces)


def test_a_file_that_goes_on_behind_its_place_keeps_every_byte(tmp_path):
    """Such as one that is overwritten: a hole there would keep what was there."""
    path = tmp_path / "file"
    path.write_bytes(b"z" * (1 << 16))
    with path.open("r+b") as file:
        sink = SparseSink(file)
        sink.write(bytes(1 << 15))
        sink.finish()
    assert path.read_bytes() == bytes(1 << 15) + b"z" * (1 << 15)


def test_holes_come_back_as_holes(image, tmp_path):
    coded, restored = io.BytesIO(), tmp_path / "restored"
    with image.open("rb") as source:
        squeeze.compress_stream(source, coded, level=1)
    coded.seek(0)
    with restored.open("wb") as sink:
        squeeze.decompress_stream(coded, sink)
    assert restored.read_bytes() == image.read_bytes()
    assert restored.stat().st_blocks * 512 < 1 << 18
