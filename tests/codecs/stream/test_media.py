"""The seam of media: regions, blocks and parts that a medium's own model codes, and those that it does not."""

import io

import numpy as np
import pytest

import squeeze
from squeeze.codecs.content import Content, Medium
from squeeze.codecs.stream import container, media
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.measuring import measure, restored
from squeeze.codecs.stream.resources import Resources
from squeeze.errors import DamagedError
from squeeze.system.limits import Limits
from tests.makers import inputs, wrapped

MARK, SIZE = b"\1ramp", 3000
RAMP = MARK + bytes((7 * i * i // 3 + i) % 256 for i in range(SIZE - len(MARK)))


class Ramps(Medium):
    """A toy: 3000 bytes that all are the same, which are coded as a byte."""

    block, kind = 6, "image"

    def __init__(self, size: int = 1):
        self._size = size

    def find(self, data):
        raw, found = data.tobytes(), []
        place = raw.find(RAMP)
        while place >= 0:
            found.append((place, place + SIZE, Content(self.kind, 0, (SIZE,))))
            place = raw.find(RAMP, place + SIZE)
        return found

    def encode(self, data, content, level, progress=None):
        assert content.form == (SIZE,) and data.tobytes() == RAMP
        if progress:
            progress(data.size)
        return b"r" * self._size

    def decode(self, payload, length, progress=None):
        if payload != b"r" * self._size or length != SIZE:
            raise DamagedError("the toy is damaged")
        if progress:
            progress(length)
        return np.frombuffer(RAMP, np.uint8)

    def memory(self, length):
        return length << 12


@pytest.fixture
def toy(monkeypatch):
    def use(size: int = 1) -> None:
        monkeypatch.setattr(media, "MEDIA", (Ramps(size),))

    use()
    return use


def blocks_of(stream):
    return [block for one in read_index(io.BytesIO(stream)) for block in one.blocks]


DATA = inputs.words(20_000) + RAMP + inputs.words(30_000) + RAMP + RAMP


@pytest.mark.parametrize("level", [1, 3, 4])
def test_regions_of_a_medium_are_blocks_of_their_own(toy, level):
    counts = list[int]()
    stream = squeeze.compress(DATA, level, block_size=len(DATA), progress=counts.append)
    assert [block.content for block in blocks_of(stream)] == ["text", "image", "text", "image", "image"]
    assert squeeze.decompress(stream) == DATA and sum(counts) == 2 * len(DATA)
    assert restored(list(measure(io.BytesIO(stream), Resources()))) == DATA


def test_a_short_file_of_a_medium_has_blocks(toy):
    assert [block.codec for block in blocks_of(squeeze.compress(RAMP, 3))] == ["image"]


def test_a_medium_in_a_wrapper_is_a_group_of_its_own(toy):
    data = wrapped.gzip_file(wrapped.TEXTS[0] + RAMP + wrapped.TEXTS[1] + RAMP)
    stream = squeeze.compress(data, 3)
    assert [block.codec for block in blocks_of(stream)] == ["opened"] and squeeze.decompress(stream) == data
    toy(SIZE)
    assert len(squeeze.compress(data, 3)) > len(stream)


def test_what_a_medium_makes_no_smaller_is_coded_as_usual(toy):
    toy(SIZE - 1)
    data = b"".join([RAMP, inputs.words(70_000)])
    stream = squeeze.compress(data, 3)
    assert "image" not in [block.codec for block in blocks_of(stream)]
    assert squeeze.decompress(stream) == data


def test_a_medium_that_is_larger_than_its_sample_promised_is_coded_as_usual(monkeypatch):
    class Promising(Ramps):
        def sample(self, size, content, most):
            return 0, size // 3, content

        def coded_size(self, data, sample, level):
            return 1

    monkeypatch.setattr(media, "MEDIA", (Promising(SIZE - 1),))
    stream = squeeze.compress(RAMP, 3)
    assert "image" not in [block.codec for block in blocks_of(stream)] and squeeze.decompress(stream) == RAMP


def test_media_stay_as_they_are_without_parsing(toy):
    assert "image" not in [block.codec for block in blocks_of(squeeze.compress(DATA, 1, parse=False))]


def test_a_medium_has_its_own_need_of_memory(toy):
    stream = squeeze.compress(DATA, 1)
    with pytest.raises(squeeze.LimitError, match="memory"):
        squeeze.decompress(stream, limits=Limits(memory=SIZE << 12))


def test_every_medium_is_a_kind_of_block():
    for medium in media.MEDIA:
        assert container.CODECS[medium.block] == medium.kind
        assert media.of_block(medium.block) is media.of_content(Content(medium.kind)) is medium
    assert media.of_content(Content("text")) is media.of_block(container.BYTEWISE) is None
