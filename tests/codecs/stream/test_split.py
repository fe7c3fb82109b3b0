"""Texts within other data are coded by the language model, the rest without it."""

import base64
import io
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

import squeeze
from squeeze.codecs.content import Content
from squeeze.codecs.stream import blocks, container, decoding, encoding, levels, runs, split
from squeeze.codecs.stream.container import Coded
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.settings import Settings
from squeeze.errors import DamagedError
from squeeze.system.binary import varint
from tests.makers import inputs, tiny_models
from tests.makers.cases import every
from tests.makers.tokenwise import calm, language_alone, settings_of

TEXT = inputs.python_text(3_000)
CODE = inputs.machine_code(200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer = tiny_models.byte_level()
    return tiny_models.write_folder(tmp_path_factory.mktemp("split") / "tiny", tokenizer, calm(tokenizer))


def found(data: bytes) -> list[tuple[int, int]]:
    """Begins and ends of texts."""
    of_text = split.find(np.frombuffer(data, np.uint8))
    if of_text is None:
        return []
    turns = np.flatnonzero(np.diff(of_text, prepend=False, append=False))
    return [(int(begin), int(end)) for begin, end in turns.reshape(-1, 2)]


def archive(texts: list[bytes]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for i, text in enumerate(texts):
            member = tarfile.TarInfo(f"member-{i}.txt")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return sink.getvalue()


def size_without_runs(data: bytes) -> int:
    """Bytes that are left for the models when long runs, such as the padding of archives, are taken out."""
    array = np.frombuffer(data, np.uint8)
    found = runs.find(array, blocks.content(array).record)
    return len(data) - (found.removed if found else 0)


def test_a_text_of_four_kilobytes_in_a_program_is_seen():
    text = inputs.python_text(9_000)[:4096]
    ((begin, end),) = found(CODE + text + CODE)
    assert abs(begin - len(CODE)) < 8
    assert abs(end - len(CODE) - len(text)) < 8


def test_the_members_of_an_archive_are_texts_and_its_headers_are_not():
    texts = [inputs.python_text(900), "grüße, 日本語\n".encode() * 100, inputs.words(1_000)]
    data = archive(texts)
    assert [data[begin:end] for begin, end in found(data)] == texts


def test_base64_is_not_split_off_as_text():
    packed = base64.encodebytes(inputs.random_bytes(9_000))
    ((_, end), (begin, _)) = found(TEXT + packed + TEXT)
    assert end - len(TEXT) < 1024  # windows of so many bytes are looked at
    assert len(TEXT) + len(packed) - begin < 1024


@pytest.mark.parametrize(
    "data",
    [b"", TEXT, inputs.random_bytes(20_000), CODE, CODE + TEXT[:400] + CODE, inputs.words(5_000), bytes(5_000)],
    ids=["nothing", "text", "random", "code", "short", "words", "zeros"],
)
def test_nothing_is_split_where_it_does_not_pay(data):
    assert found(data) == []


@given(st.lists(st.integers(8, 300), min_size=2, max_size=20), st.booleans())
def test_places_and_payloads_come_back(lengths, begins):
    of_text = np.repeat((np.arange(len(lengths)) + begins) % 2 == 1, lengths)
    payload = io.BytesIO(split.join(of_text, b"texts", b"the rest"))
    restored, text, rest = split.read(payload, of_text.size)
    assert np.array_equal(restored, of_text)
    assert (text, rest) == (b"texts", b"the rest")


@pytest.mark.parametrize(
    ("level", "longer"),
    [(7, 0), (8, 3_000), (9, 0)],
    ids=["7, split is smaller", "8, split is larger", "9, split is smaller"],
)
def test_the_smaller_of_split_and_bytewise_is_written(folder, monkeypatch, level, longer):
    """Make the bytewise result longer, or not, since an untrained model codes badly."""
    data = archive([TEXT[i : i + 800] for i in range(0, len(TEXT) - 800, 700)])
    without, whole = encoding._bytewise, size_without_runs(data)

    def bytewise(part, *rest):
        coded = without(part, *rest)
        return replace(coded, payload=coded.payload + bytes(3_000 - longer)) if part.size == whole else coded

    monkeypatch.setattr(encoding, "_bytewise", bytewise)
    coded = squeeze.compress(data, level, model=folder, verify=False)
    ((block,),) = [stream.blocks for stream in read_index(io.BytesIO(coded))]
    assert block.codec == ("bytewise" if longer else "split")
    if not longer:
        assert squeeze.decompress(coded, model=folder) == data


def force(data: bytes, settings) -> Coded:
    """Return a split block, even if it does not pay."""
    array = np.frombuffer(data, np.uint8)
    of_text = split.find(array)
    text = encoding.by_language(array[of_text], Content("text"), settings, None)
    return Coded(container.SPLIT, encoding.join(of_text, text, array[~of_text], settings, None))


@pytest.mark.parametrize(
    "rest", [CODE, inputs.random_bytes(5_000), inputs.records(120)], ids=["code", "packed", "table"]
)
def test_all_kinds_of_rest_come_back(folder, rest):
    settings = settings_of(folder, 1)
    data = rest[: len(rest) // 2] + TEXT + rest[len(rest) // 2 :] + TEXT[:700]
    coded = force(data, settings)
    raw = np.frombuffer(data, np.uint8)
    for guessed in (None, raw):
        assert decoding.decode_block(coded, len(data), settings, None, guessed).tobytes() == data


def test_a_rest_that_looks_like_text_but_is_coded_as_no_text_comes_back(folder):
    rest = np.frombuffer(base64.b64encode(inputs.random_bytes(6_000)), np.uint8)
    settings = settings_of(folder, 1)
    as_text, as_other = encoding.candidates(rest, blocks.content(rest), replace(settings, language=None))
    assert (as_text.content.kind, as_other.content.kind) == ("text", "other")
    data = TEXT + rest.tobytes() + TEXT[:700]
    coded = force(data, settings)
    assert container.read_content(io.BytesIO(coded.payload))[0].kind == "other"
    assert decoding.decode_block(coded, len(data), settings).tobytes() == data


def test_progress_is_told_of_each_byte_once(folder, coded):
    settings, told = settings_of(folder, 1), []
    data = CODE + TEXT + CODE
    encoding.encode_block(np.frombuffer(data, np.uint8), Content("executable"), settings, False, told.append)
    assert sum(told) == len(data)
    told.clear()
    decoding.decode_block(coded, len(data), settings, told.append)
    assert sum(told) == len(data)


def test_refuses_damaged_split_blocks(folder):
    settings = settings_of(folder, 1)
    for payload in (
        b"\x00" + varint(1) + varint(100),
        b"\x00" + varint(3) + varint(50) + varint(0) + varint(50) + varint(1) + b"x",
        b"\x00" + varint(2) + varint(50) + varint(49) + varint(1) + b"x",
        b"\x00" + varint(2) + varint(50) + varint(50) + varint(101) + b"x" * 101,
        b"\x00" + varint(2) + varint(50) + varint(50) + varint(1) + b"x" * 90,
        b"\x00" + varint(99),
    ):
        with pytest.raises(DamagedError):
            decoding.decode_block(Coded(container.SPLIT, payload), 100, settings)


@pytest.fixture(scope="module")
def coded(folder) -> Coded:
    return force(CODE + TEXT + CODE, settings_of(folder, 1))


@pytest.mark.parametrize("place", every(2, range(0, 60, 7)))
def test_a_flipped_byte_is_told_or_changes_what_comes_back(folder, coded, place):
    settings, size = settings_of(folder, 1), len(CODE + TEXT + CODE)
    payload = bytearray(coded.payload)
    payload[place] ^= 0x41
    try:
        restored = decoding.decode_block(Coded(container.SPLIT, bytes(payload)), size, settings)
    except DamagedError:
        return
    assert restored.size == size


def test_what_each_byte_cost_is_told_of_both_parts(folder):
    data = archive([TEXT[i : i + 800] for i in range(0, len(TEXT) - 800, 700)])
    with language_alone():
        coded = squeeze.compress(data, 8, model=folder)
    explanation = squeeze.explain(coded, model=folder)
    assert explanation.data == data
    assert {block.codec for block in explanation.blocks} == {"tokenwise", "bytewise"}
    assert sum(total.size for total in explanation.by_content.values()) == len(data)
    assert explanation.bits_of_bytes.size == len(data)
    assert explanation.bits / 8 < len(coded)


def test_a_header_without_a_language_model_has_no_split_blocks():
    with pytest.raises(DamagedError, match="the header names none"):
        decoding.decode_block(Coded(container.SPLIT, b"\x00\x02"), 100, Settings(levels.LEVELS[6], 1))
