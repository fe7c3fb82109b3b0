"""Blocks of Snappy and LZ4, in Parquet pages and frames, are opened, and written again as their encoders do."""

from contextlib import suppress
from functools import partial
from hashlib import sha256

import numpy as np
import pytest

from squeeze.codecs.parse.quick import blocks, lz4, matcher, snappy
from squeeze.codecs.parse.quick.layout import SNAPPY_PART, empty
from squeeze.codecs.parse.quick.lz4_frames import Lz4Frame
from squeeze.codecs.parse.quick.parquet import ParquetPage
from squeeze.codecs.parse.quick.snappy_frames import SnappyFrame
from squeeze.codecs.parse.room import STEP, Room
from squeeze.errors import SqueezeError
from tests.codecs.parse.trees import closed, parsed
from tests.makers import inputs, quick
from tests.references import naive_quick

TINY = inputs.words(160)
WORDS = inputs.words(150_000)
LONG = b"".join(
    [
        *(inputs.words(70_000), inputs.machine_code(2_000), inputs.random_bytes(90_000)),
        *(inputs.records(900), bytes(300), inputs.words(66_000, 3)),
    ]
)
# Blocks of TINY by pyarrow 26 (Snappy 1.2 and LZ4 1.10), and by the Rust crate snap.
BY_PYARROW = bytes.fromhex(
    "a001e06120666f7220776173206974206f66206973206e6f7420617420746f2062792061206f6e2061742061207769746820617420696e2066726f"
    "6d012a08627574052e086869731547047468193c046e64115a0c74686520110f016d0104112a1461732068657209604066726f6d20697420616e64"
    "207468617420"
)
BY_SNAP = bytes.fromhex(
    "a001e06120666f7220776173206974206f66206973206e6f7420617420746f2062792061206f6e2061742061207769746820617420696e2066"
    "726f6d012a08627574052e086869731547047468193c0c6e642077095a0c74686520110f01130104112a146173206865720960095a28742061"
    "6e64207468617420"
)
# The first bytes of SHA-256 of what encoders write: pyarrow 26, cramjam 2.14 (Rust), python-lz4 4.4.5.
BLOCKS = {
    ("LONG", 0): "24ad5ec1dd6c87f9",
    ("LONG", 2): "855ef0fa66cd7189",
    ("LONG", 5): "af80c138030ec7c1",
    ("TINY", 0): "35805bebc4f8ed26",
    ("TINY", 2): "eb230d2c2f31aa81",
    ("TINY", 5): "8ec5b67e47ae7339",
    ("TINY", 6): "a9d3c406b9abf7df",
}
FILES = {  # not made at import, since that compiles
    "linked, by pyarrow": (partial(quick.lz4_file, LONG, 0x40), "1ace724c02967fd1"),
    "words, by pyarrow": (partial(quick.lz4_file, WORDS, 0x40), "92c38b7986efbec4"),
    "with sums, by python-lz4": (partial(quick.lz4_file, WORDS, 0x7C, 5), "e7b3412d388c2bac"),
    "with stored blocks, by python-lz4": (
        partial(quick.lz4_file_with_stored, WORDS + inputs.random_bytes(90_000)),
        "19667eb32333365c",
    ),
    "Snappy, by snap": (partial(quick.snappy_file, WORDS), "cf9d267977f3c56c"),
}


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:16]


@pytest.mark.parametrize(("name", "encoder"), BLOCKS)
def test_blocks_are_those_of_their_encoders(name, encoder):
    assert digest(quick.block({"LONG": LONG, "TINY": TINY}[name], encoder)) == BLOCKS[name, encoder]


@pytest.mark.parametrize("name", FILES)
def test_files_are_those_of_their_encoders(name):
    made, expected = FILES[name]
    data = made()
    assert digest(data) == expected
    root = parsed(b"before" + data)
    assert len(root.children) == 1 and root.children[0].found.size > len(data) - 20
    assert len(root.children[0].found.extra) < 12 and closed(root, len(data) + 6) == b"before" + data


@pytest.mark.parametrize(("encoder", "block"), [(2, BY_PYARROW), (0, BY_SNAP)])
def test_a_block_of_a_real_encoder_is_opened(encoder, block):
    content, extra = blocks.open_snappy(np.frombuffer(block, np.uint8), 160, Room(1 << 20))
    assert content.tobytes() == TINY and extra == bytes([encoder])
    assert quick.block(TINY, encoder) == naive_quick.close(24, TINY, extra) == block


@pytest.mark.parametrize("encoder", range(7))
def test_pages_of_parquet_are_opened(encoder):
    data = quick.parquet(encoder)
    root = parsed(data)
    assert [child.node.own.tobytes() for child in root.children] == list(quick.CONTENTS)
    assert [child.found.kind for child in root.children] == [ParquetPage.kind] * 4
    assert closed(root, len(data)) == data


def test_headers_of_pages_that_are_opened_count_for_nothing():
    # A file of many small pages would else use up what may be tried in vain.
    room = Room(1 << 20)
    assert ParquetPage().open(quick.page(TINY, quick.block(TINY, 2)), 0, room)
    assert room.attempts == Room(0).attempts


def test_pages_of_lz4_with_sizes_before_them_are_opened():
    content = quick.CONTENTS[0]
    data = quick.page(content, quick.hadoop(content))
    (child,) = parsed(data).children
    assert child.node.own.tobytes() == content and child.found.start == len(data) - child.found.size


@pytest.mark.parametrize("place", range(0, 99, 9))
def test_other_choices_are_coded(place):
    """Literals are in the place of a match, as an encoder that looks less would write them."""
    content = WORDS[:2_000]
    for encoder in (0, 5):
        coded = np.frombuffer(quick.block(content, encoder), np.uint8)
        tokens = empty(np.zeros(len(content), np.uint8), SNAPPY_PART)
        if encoder:
            assert lz4.read_part(coded, tokens, 0, 0, False) == len(content)
        else:
            assert snappy.read(coded, tokens)
        k, count = 1 + place % (tokens.total - 2), tokens.total
        tokens.literals[k + 1] += tokens.literals[k] + tokens.lengths[k]
        for field in (tokens.literals, tokens.lengths, tokens.offsets):
            field[k : count - 1] = field[k + 1 : count].copy()
        tokens.ends[0] -= 1
        changed = lz4.write_part(tokens, 0, 0, len(content)) if encoder else snappy.write(tokens)
        opens = blocks.open_lz4 if encoder else blocks.open_snappy
        found, extra = opens(changed, len(content), Room(1 << 20))
        assert found.tobytes() == content and 2 < len(extra) < 90
        assert naive_quick.close(24, content, extra) == changed.tobytes()


def test_a_copy_that_no_encoder_would_write_stays_closed():
    block = bytes([20, 12 << 2]) + b"abcdefghijklm" + bytes([2 | 2 << 2, 13, 0, 2 | 3 << 2, 13, 0])
    assert blocks.open_snappy(np.frombuffer(block, np.uint8), 20, Room(1 << 20)) is None


@pytest.mark.parametrize(
    "made",
    [quick.parquet, lambda: FILES["words, by pyarrow"][0]()[:70_000], FILES["Snappy, by snap"][0]],
    ids=["Parquet", "LZ4", "Snappy"],
)
def test_damaged_and_cut_files_come_back(made):
    data, chance = made(), np.random.default_rng(1)
    for _ in range(30):
        changed = bytearray(data[: chance.integers(20, len(data))] if chance.random() < 0.3 else data)
        for place in chance.integers(0, len(changed), 3):
            changed[place] = chance.integers(0, 256)
        assert closed(parsed(bytes(changed)), len(changed)) == changed


def test_bombs_stay_closed():
    room = Room(1 << 16)
    assert Lz4Frame().open(quick.lz4_file(bytes(1 << 20), 0x60, 7), 0, room) is None
    page = quick.page(bytes(1 << 20), quick.block(bytes(1 << 20), quick.LZ4))
    assert ParquetPage().open(page, 0, room) is None
    assert ParquetPage().open(quick.page(bytes(1 << 20), quick.block(bytes(1 << 20), 0)), 0, room) is None
    assert SnappyFrame().open(quick.snappy_file(bytes(1 << 20)), 0, room) is None
    assert room.attempts < Room(0).attempts


@pytest.mark.parametrize(
    ("wrapper", "data", "steps"),
    [
        (Lz4Frame(), b"\x04\x22\x4d\x18\x60\x40\0" + b"\1\0\0\0x" * 5_000, 5_000),
        (SnappyFrame(), b"\xff\x06\0\0sNaPpY" + b"\1\5\0\0aaaax" * 5_000, 5_000),
        (ParquetPage(), b"\x15\0\x15\x7f\x15\x7f\x2c\x19\xf3\xff\xff\x7f" + b"\1" * 60_000, 1_000),
        (ParquetPage(), b"\x15\0\x15\x7f\x15\x7f\x2c\x19\xf7\xff\xff\x7f" + b"\1" * 60_000, 1_000),
    ],
)
def test_long_attempts_in_vain_are_counted(wrapper, data, steps):
    """They would take time in proportion to the square of hostile data."""
    room = Room(1 << 20)
    assert wrapper.open(data, 0, room) is None
    assert Room(0).attempts - room.attempts >= steps * STEP
    room.attempts = 0
    assert wrapper.open(data, 0, room) is None and room.attempts > -(1 << 20)


@pytest.mark.parametrize(
    "header",
    [b"", b"\0", b"\x19\xf8" + b"\xff" * 8 + b"\x7f", b"\x18" + b"\xff" * 5, b"\x1c" * 99, b"\x1d\0", b"\x17\1"],
)
def test_headers_that_are_impossible_are_no_pages(header):
    assert ParquetPage().open(b"\x15\0\x15\x7f\x15\x7f\x2c" + header, 0, Room(1 << 20)) is None


@pytest.mark.parametrize("wrapper", [ParquetPage(), Lz4Frame(), SnappyFrame()])
@pytest.mark.parametrize(
    "extra", [b"", b"\x07", b"\x60\3", b"\x60\x08", b"\0\4\xff\xff\xff\xff", b"\2\xff\xff\xff\xff"]
)
def test_impossible_closings_are_refused_or_give_other_bytes(wrapper, extra):
    content = np.frombuffer(TINY, np.uint8)
    with suppress(SqueezeError):
        assert wrapper.close(content, content[:0], extra).size
    with pytest.raises(SqueezeError):
        wrapper.close(content[:0], content[:0], extra)


def test_predictions_that_take_too_long_are_given_up(monkeypatch):
    monkeypatch.setattr(matcher, "_LEAST_STEPS", -1 << 40)
    content = np.frombuffer(TINY, np.uint8)
    with pytest.raises(SqueezeError):
        ParquetPage().close(content, content[:0], b"\0")
    assert blocks.open_snappy(np.frombuffer(BY_SNAP, np.uint8), 160, Room(1 << 20)) is None
