"""Sounds in files: all formats are found, also within other files, and none becomes larger."""

import io

import numpy as np
import pytest

import squeeze
from squeeze.codecs.content import Content
from squeeze.codecs.numbers import apart
from squeeze.codecs.sound.formats import Sound
from squeeze.codecs.sound.layout import Layout
from squeeze.codecs.sound.raw import find_raw
from squeeze.codecs.stream import container, media, opened
from squeeze.codecs.stream.index import read_index
from tests.makers import inputs, sounds, wrapped

MONO, STEREO = sounds.samples(1500, 1, 16), sounds.samples(1200, 2, 16)
DEEP, LOW = sounds.samples(900, 2, 24), sounds.samples(3000, 1, 8)
FILES = {
    "WAV": (sounds.wav(STEREO, 2), Layout(2, 2, prefix=44)),
    "WAV of 8 bits": (sounds.wav(LOW, 1), Layout(1, 1, unsigned=1, prefix=44)),
    "WAV of 24 bits, extensible": (sounds.wav(DEEP, 3, extensible=True), Layout(3, 2, prefix=68)),
    "WAV of 32 bits": (sounds.wav(STEREO, 4), Layout(4, 2, prefix=44)),
    "RF64": (sounds.wav(STEREO, 2, b"RF64"), Layout(2, 2, prefix=80)),
    "RIFX": (sounds.wav(STEREO, 2, b"RIFX"), Layout(2, 2, big=1, prefix=44)),
    "Wave64": (sounds.wav64(STEREO, 2), Layout(2, 2, prefix=104)),
    "AIFF": (sounds.aiff(STEREO, 2), Layout(2, 2, big=1, prefix=54)),
    "AIFF-C, low byte first": (sounds.aiff(MONO, 2, b"sowt"), Layout(2, 1, prefix=60)),
    "AIFF-C of bytes without a sign": (sounds.aiff(LOW, 1, b"raw "), Layout(1, 1, 1, 1, 60)),
    "AU": (sounds.au(DEEP, 3), Layout(3, 2, big=1, prefix=24)),
    "CAF": (sounds.caf(MONO, 2), Layout(2, 1, prefix=68)),
    "CAF, high byte first": (sounds.caf(MONO, 2, little=False), Layout(2, 1, big=1, prefix=68)),
}


def find(data: bytes) -> list[tuple[int, int, Layout]]:
    return apart(Sound().named(data), len(data))


def kinds_of(stream: bytes) -> set[int]:
    """Return the kinds of the blocks of a stream, and of those in them."""
    kinds = set()
    for block in (block for one in read_index(io.BytesIO(stream)) for block in one.blocks):
        start = block.coded_offset + block.coded_length - block.payload_length
        payload = stream[start : start + block.payload_length]
        kinds.add(block.kind)
        if block.kind == container.OPENED:
            kinds |= {part.kind for part in opened.read(payload, block.raw_length).blocks()}
    return kinds


@pytest.mark.parametrize("name", FILES)
def test_every_format_is_found(name):
    data, form = FILES[name]
    assert find(data) == [(0, len(data), form)]
    before = inputs.words(500)
    assert find(before + data + inputs.words(500)) == [(500, 500 + len(data), form)]
    assert not find(data[: form.prefix - 1])


@pytest.mark.parametrize("level", [1, 4])
@pytest.mark.parametrize("name", ["WAV", "WAV of 8 bits", "WAV of 24 bits, extensible", "AIFF"])
def test_a_sound_is_coded_by_its_model(name, level):
    data = FILES[name][0]
    stream = squeeze.compress(data, level)
    assert squeeze.decompress(stream) == data and kinds_of(stream) == {container.SOUND}
    assert len(stream) < 0.9 * len(squeeze.compress(data, level, parse=False))


def test_sounds_within_other_files_are_coded_by_their_model():
    data = inputs.words(3_000) + FILES["WAV"][0] + FILES["AU"][0] + inputs.words(3_000, 1)
    archive = wrapped.zip_archive({"a.wav": FILES["WAV"][0], "b.txt": inputs.words(3_000)})
    for raw in (data, archive):
        stream = squeeze.compress(raw, 1)
        assert squeeze.decompress(stream) == raw and container.SOUND in kinds_of(stream)


@pytest.mark.parametrize("level", [1, 4])
def test_a_sound_is_never_larger_than_without_its_model(level):
    noise = np.random.default_rng(1).integers(-32768, 32768, (2000, 2))
    text = np.frombuffer(inputs.words(8_000), "<i2").astype(np.int64).reshape(-1, 2)
    for made in (noise, text):
        data = sounds.wav(made, 2)
        assert len(squeeze.compress(data, level)) <= len(squeeze.compress(data, level, parse=False))


@pytest.mark.parametrize(
    "data",
    [
        b"RIFF\xff\xff\xff\xffWAVEfmt \xff\xff\xff\xff" + bytes(2000),
        sounds.wav(STEREO, 2).replace(b"fmt \x10", b"fmt \x00"),
        sounds.wav(STEREO, 2).replace(b"\x01\0\x02\0", b"\x03\0\x02\0"),  # floats
        sounds.wav(STEREO, 2).replace(b"\x01\0\x02\0", b"\x01\0\0\0"),  # no channels
        sounds.aiff(STEREO, 2, b"ima4"),
        b"FORM\0\0\0\0AIFF" * 100 + bytes(2000),
        sounds.caf(MONO, 2)[:50] + bytes(2000),
        b"caff\0\1\0\0desc" + b"\xff" * 2000,
    ],
    ids=range(8),
)
def test_headers_that_tell_nothing_find_nothing(data):
    assert not find(data)


def test_a_sound_that_was_cut_off_is_found_as_far_as_it_goes():
    data, form = FILES["WAV"]
    assert find(data[:3000]) == [(0, 3000, form)]


def test_samples_without_a_header_are_found_by_their_bytes():
    made = sounds.samples(20_000, 2, 16)
    data = sounds.to_bytes(made, 2)
    assert find_raw(np.frombuffer(data[2:], np.uint8)) == Layout(2, 2, prefix=2)
    deep = find_raw(np.frombuffer(sounds.to_bytes(made[:, :1].repeat(3, 0), 3, True), np.uint8))
    assert deep and deep.width == 3
    stream = squeeze.compress(data, 1)
    assert squeeze.decompress(stream) == data and kinds_of(stream) == {container.SOUND}


def test_other_data_is_not_taken_for_samples():
    random = np.random.default_rng(0)
    for data in (
        inputs.words(100_000),
        bytes(100_000),
        random.integers(0, 256, 100_000).astype(np.uint8).tobytes(),
        inputs.machine_code(20_000),
        random.normal(size=10_000).tobytes(),
    ):
        assert find_raw(np.frombuffer(data, np.uint8)) is None


def test_a_sample_has_whole_frames():
    medium = media.of_block(container.SOUND)
    assert medium
    start, end, content = medium.sample(600_044, Content("sound", 0, Layout(3, 2, prefix=44)), 9_000)
    assert (start - 44) % 6 == (end - start) % 6 == 0 and content.form == Layout(3, 2)
    assert medium.sample(400, Content("sound", 0, Layout(3, 2, prefix=44)), 9_000)[:2] == (0, 400)
