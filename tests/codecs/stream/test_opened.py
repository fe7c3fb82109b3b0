"""Blocks with opened wrappers: smaller files, every reader, and refusals."""

import io
import struct
import zipfile

import numpy as np
import pytest

import squeeze
from squeeze.codecs.content import Content, Medium
from squeeze.codecs.image.layout import Layout
from squeeze.codecs.image.medium import Image
from squeeze.codecs.parse import room
from squeeze.codecs.parse.tree import Node
from squeeze.codecs.stream import compressor, container, opened
from squeeze.codecs.stream.container import Coded
from squeeze.codecs.stream.encoding import by_language
from squeeze.codecs.stream.index import read_index
from squeeze.errors import DamagedError, LimitError
from squeeze.system.binary import varint
from tests.makers import byte_code, gifs, images, inputs, programs, quick, tiny_models, wrapped

DOCUMENTS = wrapped.documents()


def kinds_of(stream: bytes) -> list[int]:
    return [block.kind for one in read_index(io.BytesIO(stream)) for block in one.blocks]


@pytest.mark.parametrize(("name", "level"), [*((name, 3) for name in DOCUMENTS), ("zip", 1), ("PNG", 1), ("nested", 4)])
def test_a_file_is_smaller_with_its_wrappers_opened(name, level):
    data = DOCUMENTS[name]
    stream = squeeze.compress(data, level)
    assert squeeze.decompress(stream) == data
    assert len(stream) < 0.95 * len(squeeze.compress(data, level, parse=False))
    assert kinds_of(stream) == [container.OPENED]


@pytest.mark.parametrize("level", [5, pytest.param(6, marks=pytest.mark.slow)])
def test_levels_with_a_network_open_wrappers(level):
    stream = squeeze.compress(DOCUMENTS["nested"], level)
    assert squeeze.decompress(stream) == DOCUMENTS["nested"] and kinds_of(stream) == [container.OPENED]


def test_blocks_are_read_at_any_place_and_salvaged():
    data = DOCUMENTS["zip"] + inputs.words(100_000) + DOCUMENTS["PNG"] + DOCUMENTS["zlib"]
    stream = squeeze.compress(data, 1, block_size=30_000)
    assert container.OPENED in kinds_of(stream) and container.BYTEWISE in kinds_of(stream)
    with squeeze.open(io.BytesIO(stream)) as file:
        for place in range(0, len(data) - 500, 7_001):
            file.seek(place)
            assert file.read(500) == data[place : place + 500]
    damaged = bytearray(stream)
    damaged[200] ^= 1
    sink = io.BytesIO()
    totals = squeeze.decompress_stream(io.BytesIO(damaged), sink, salvage=True)
    assert totals.damage and sink.getvalue().endswith(data[-10_000:])


def test_threads_give_the_same_bytes():
    data = b"".join(DOCUMENTS.values())
    assert squeeze.compress(data, 1, threads=2, block_size=20_000) == squeeze.compress(data, 1, block_size=20_000)


def test_incompressible_contents_stay_closed():
    data = wrapped.gzip_file(inputs.random_bytes(20_000))
    assert len(squeeze.compress(data, 3)) <= len(squeeze.compress(data, 3, parse=False))


def test_a_memory_limit_counts_what_a_block_opens(monkeypatch):
    stream = squeeze.compress(wrapped.gzip_file(inputs.words(100_000)), 1)
    limits = squeeze.Limits(memory=64 << 20)
    assert squeeze.decompress(stream, limits=limits)
    monkeypatch.setattr(opened, "MEMORY", 1_000)
    with pytest.raises(LimitError, match="opened bytes"):
        squeeze.decompress(stream, limits=limits)


def write_model(folder):
    return tiny_models.write_gguf(folder / "tiny.gguf", tiny_models.byte_level())


@pytest.mark.parametrize("name", ["zip", pytest.param("texts", marks=pytest.mark.slow)])
def test_text_in_wrappers_comes_back_at_level_8(name, tmp_path):
    model = write_model(tmp_path)
    stream = squeeze.compress(DOCUMENTS[name], 8, model=model, lanes=2)
    assert squeeze.decompress(stream, model=model) == DOCUMENTS[name]


def test_a_stream_names_the_model_that_codes_a_part_of_a_block(tmp_path, monkeypatch):
    model, data = write_model(tmp_path), DOCUMENTS["gzip"]

    def by_model_alone(part, content, settings, verify=True, progress=None):
        if isinstance(content, Node):
            return opened.encode(content, lambda *_: None, lambda part, kind: by_model_alone(part, kind, settings))
        is_coded = settings.language and content.kind == "text"
        return by_language(part, content, settings, None) if is_coded else None

    monkeypatch.setattr(compressor, "encode_block", by_model_alone)
    stream = squeeze.compress(data, 8, model=model, lanes=2)
    assert (stream[2], kinds_of(stream)) == (0x78, [container.OPENED])
    assert squeeze.decompress(stream, model=model) == data
    long = squeeze.compress(data, 8, model=model, lanes=2, block_size=len(data))
    assert b'"weights"' in long[:400] and kinds_of(long) == [container.OPENED]
    assert squeeze.decompress(long, model=model) == data


def test_a_block_larger_than_what_may_be_opened_comes_back(monkeypatch):
    monkeypatch.setattr(room, "MOST_OPENED", 20_000)
    data = DOCUMENTS["zip"] + inputs.random_bytes(100_000)
    stream = squeeze.compress(data, 1, block_size=1 << 20)
    assert kinds_of(stream) == [container.OPENED] and squeeze.decompress(stream) == data


def test_progress_is_that_of_the_raw_bytes():
    data, counts = DOCUMENTS["nested"], list[int]()
    stream = squeeze.compress(data, 1, block_size=len(data), progress=counts.append)
    assert kinds_of(stream) == [container.OPENED] and sum(counts) == 2 * len(data)  # coded and verified
    counts.clear()
    squeeze.decompress_stream(io.BytesIO(stream), io.BytesIO(), progress=counts.append)
    assert sum(counts) == len(data) and len(counts) > 1


@pytest.mark.parametrize(
    "payload", [b"", b"\1", b"\0", b"\0\5", b"\0\1\2ab", b"\0\1\xff\xff\xff\x7f", b"\0\1\3\0\0\0\0"]
)
def test_refuses_impossible_payloads(payload):
    with pytest.raises(DamagedError):
        opened.decode(opened.read(payload, 100), 100, lambda part, *_: np.frombuffer(part.payload, np.uint8))


def test_small_images_share_a_group():
    pngs = b"".join(wrapped.png(inputs.words(128, seed), 16) for seed in range(40))
    root = opened.find(np.frombuffer(pngs, np.uint8))
    assert root and len(root.children) == 40
    coded = opened.encode(root, lambda plan: None, lambda part, content: None)
    parts = opened.read(coded.payload, len(pngs))
    assert len(parts.groups) == 1
    again = opened.decode(parts, len(pngs), lambda part, size, known: np.frombuffer(part.payload, np.uint8))
    assert again.tobytes() == pngs


def test_the_frames_of_an_animation_share_a_group(monkeypatch):
    frames = [np.roll(images.pixels(40, 30, 1), shift, 1).tobytes() for shift in range(6)]
    data = gifs.gif(40, [gifs.image(40, gifs.packed(gifs.codes_of(frame, 8), 8), 8, 30) for frame in frames])
    root, coded = opened.find(np.frombuffer(data, np.uint8)), list[np.ndarray]()
    opened.encode(root, lambda plan: None, lambda part, content: coded.append(part) if content.form else None)
    assert [part.tobytes() for part in coded] == [b"".join(frames)]
    stream = squeeze.compress(data, 3)
    assert squeeze.decompress(stream) == data
    monkeypatch.setattr(Image, "joins", Medium.joins)
    assert len(stream) < len(squeeze.compress(data, 3))


def test_filtered_images_stay_apart():
    pngs = [images.png((90, 30, 8, 0, 0), images.filtered(images.pixels(90, 30, 1)[..., 0], 1, [4])) for _ in range(2)]
    root, coded = opened.find(np.frombuffer(b"".join(pngs), np.uint8)), list[int]()
    opened.encode(root, lambda plan: None, lambda part, content: coded.append(part.size) if content.form else None)
    assert coded == [30 * 91] * 2


def test_an_image_that_ends_within_a_row_stays_apart():
    groups, form = opened._Groups(), Content("image", 0, tuple(Layout(40, 8, 1)))
    sizes = (40 * 30, 40 * 30 - 7, 40 * 30)
    assert [groups.add(form, np.zeros(size, np.uint8)) for size in sizes] == [0, 1, 0]


def test_images_of_two_values_stay_apart_from_others():
    groups, form = opened._Groups(), Content("image", 0, tuple(Layout(80, 8, 1)))
    grey, page = images.pixels(80, 60, 1).ravel().astype(np.uint8), images.page(80, 60).ravel().astype(np.uint8)
    pieces = [page, grey, 255 * page, page[::-1], grey[::-1], 0 * page, page[:800]]
    assert [groups.add(form, piece) for piece in pieces] == [0, 1, 2, 0, 1, 1, 1]


def test_a_block_has_a_bounded_number_of_parts(monkeypatch):
    monkeypatch.setattr(opened, "_MOST_PARTS", 1 << 10)
    empty_plan, parts = b"\1\0", b"\1\0"
    for count in (3, 1 << 10):
        payload = b"\0" + empty_plan + varint(count) + count * parts
        assert len(opened.read(payload, len(payload)).groups[0]) == count
    with pytest.raises(DamagedError, match="opened wrappers is impossible"):
        opened.read(payload + b"\1" + parts, len(payload))


def test_a_plan_takes_memory_by_its_size():
    plan = Coded(container.BYTEWISE, b"x"), 1 << 24
    assert opened.Parts(plan, []).memory >= 1 << 30


def test_byte_code_is_not_coded_closed_too():
    data = np.frombuffer(byte_code.of_module(zipfile), np.uint8)
    root = opened.find(data)
    assert root and opened.surely_pays(root, data)
    assert not opened.surely_pays(root, np.tile(data, 4))  # if it is a part of other data


def test_blocks_in_lz4_and_snappy_are_not_coded_closed_too_unless_they_are_noise():
    texts, noise = inputs.words(60_000), inputs.random_bytes(60_000)
    for make in (quick.lz4_file, quick.snappy_file):
        data, stored = (np.frombuffer(make(content), np.uint8) for content in (texts, noise))
        root, other = opened.find(data), opened.find(stored)
        assert root and opened.surely_pays(root, data)
        assert not other or not opened.surely_pays(other, stored)


def test_programs_are_not_coded_closed_too():
    data = np.frombuffer(programs.elf(), np.uint8)
    root = opened.find(data)
    assert root and data.size >= 1 << 14 and opened.surely_pays(root, data)
    assert not opened.surely_pays(root, np.tile(data, 2))


@pytest.mark.parametrize("loaded", [inputs.words(20_000), inputs.random_bytes(20_000)], ids=["text", "noise"])
def test_programs_that_load_no_code_are_no_larger_than_closed(loaded):
    size = 120 + len(loaded)
    head = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    data = head + struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0, size, size, 4_096) + loaded
    assert opened.find(np.frombuffer(data, np.uint8))
    assert len(squeeze.compress(data, 1)) <= len(squeeze.compress(data, 1, parse=False))
