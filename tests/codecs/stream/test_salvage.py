"""Salvage: what is restored of a damaged file, what is reported, and what replaces lost bytes."""

import io
import os

import pytest

import squeeze
from squeeze.codecs.stream import container
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.decompressor import decompress_stream
from squeeze.codecs.stream.footer import Index, index_bytes
from squeeze.codecs.stream.index import read_index
from squeeze.errors import LimitError, OptionError, SqueezeError
from squeeze.system.limits import Limits
from tests.makers import inputs
from tests.makers.streams import DATA, WHOLE, long, of_both_forms, several


@pytest.fixture(scope="module")
def coded():
    return several()


def salvage(data, **options):
    sink = io.BytesIO()
    totals = decompress_stream(io.BytesIO(data), sink, salvage=True, **options)
    assert sink.tell() == totals.raw
    return sink.getvalue(), totals.damage


def test_salvage_of_an_undamaged_file_is_the_file(coded):
    assert salvage(coded) == salvage(of_both_forms()) == (WHOLE, ())


def test_damage_stays_in_its_block(coded):
    """Payload, block header and stream header: whatever is hit, the other blocks come back in their places."""
    stream = read_index(io.BytesIO(coded))[0]
    for hurt in stream.blocks:
        for at in (hurt.coded_offset, hurt.coded_offset + hurt.coded_length // 2):
            damaged = bytearray(coded)
            damaged[at] ^= 1
            expected = bytearray(WHOLE)
            start, end = hurt.raw_offset, hurt.raw_offset + hurt.raw_length
            expected[start:end] = bytes(end - start)
            assert salvage(bytes(damaged)) == (
                bytes(expected),
                (
                    f"bytes {start} to {end} are lost: their block is damaged",
                    f"the order of the other blocks in bytes 0 to {stream.raw_size} is unproved: "
                    "the checksum of all of them cannot be compared",
                ),
            )


def test_a_cut_file_gives_all_whole_blocks(coded):
    blocks = read_index(io.BytesIO(coded))[0].blocks
    hurt = blocks[-1]
    restored, damage = salvage(coded[: hurt.coded_offset + 20])
    assert restored == DATA[: hurt.raw_offset]
    assert damage == (
        f"the order of the blocks in bytes 0 to {hurt.raw_offset} is unproved, and whether they are all: "
        "the index with the checksum of all of them is lost",
        f"what follows byte {hurt.raw_offset} is lost: the file was cut off",
    )


SHORT = [(inputs.words(1_000), 1), (inputs.random_bytes(500), 1), (inputs.words(700, seed=2), 2)]


@pytest.fixture(scope="module")
def short_streams():
    """Short streams, the second of them stored."""
    coded = b"".join(squeeze.compress(raw, level) for raw, level in SHORT)
    streams = read_index(io.BytesIO(coded))
    assert all(stream.short for stream in streams)
    return coded, [(stream.offset, stream.blocks[0]) for stream in streams]


def test_damage_stays_in_its_short_stream(short_streams):
    """Checksum and payload."""
    coded, streams = short_streams
    whole = b"".join(raw for raw, _ in SHORT)
    for _, hurt in streams:
        payload = hurt.coded_offset + hurt.coded_length - hurt.payload_length
        for at in (payload - 1, payload, payload + hurt.payload_length // 2):
            damaged, expected = bytearray(coded), bytearray(whole)
            damaged[at] ^= 1
            start, end = hurt.raw_offset, hurt.raw_offset + hurt.raw_length
            expected[start:end] = bytes(end - start)
            lost = (f"bytes {start} to {end} are lost: their block is damaged",)
            assert salvage(bytes(damaged)) == (bytes(expected), lost)


def test_a_short_stream_of_a_damaged_level_is_lost_unless_it_is_stored(short_streams):
    coded, streams = short_streams
    for (start, hurt), (raw, _) in zip(streams, SHORT, strict=True):
        damaged = bytearray(coded)
        damaged[start + 2] = 0x1F
        restored, damage = salvage(bytes(damaged))
        end = hurt.raw_offset + hurt.raw_length
        assert restored[hurt.raw_offset : end] == (raw if hurt.codec == "stored" else bytes(len(raw)))
        said = "the file uses a level or parameter that this version lacks: use a newer squeeze"
        assert damage[0] == f"the stream at byte {start} of the file: {said}"
        assert len(damage) == 1 + (hurt.codec != "stored")


def test_what_follows_damaged_lengths_of_a_short_stream_is_lost(short_streams):
    coded, streams = short_streams
    (start, _), raw = streams[2], SHORT[0][0] + SHORT[1][0]
    damaged = coded[: start + 3] + b"\0" + coded[start + 4 :]
    told = "what follows byte 1500 is lost: a block's lengths are impossible: the file is damaged"
    assert salvage(damaged) == (raw, (told,))
    assert salvage(coded[:-1]) == (raw, ("what follows byte 1500 is lost: the file was cut off",))


@pytest.mark.parametrize("junk", [b"junk", b"\xf5\xac\x09", b"\xf5\xac"])
def test_salvage_restores_what_stands_before_foreign_bytes(coded, junk):
    restored, damage = salvage(coded + junk)
    assert restored == WHOLE
    assert len(damage) == 1


def test_salvage_writes_no_more_than_blocks_can_hold():
    header = container.header_bytes({})
    lying = header + index_bytes(Index(len(header), [(1 << 62, 0)], 0))
    assert salvage(lying)[0] == b""


def test_salvage_refuses_what_is_no_sqz_file():
    with pytest.raises(squeeze.FormatError, match="it is empty"):
        salvage(b"")
    with pytest.raises(squeeze.FormatError, match=r"not a \.sqz file"):
        salvage(b"hello, this is text")


TEXT = inputs.words(4_000)
UNPROVED = "the order of the blocks in bytes 0 to {} is unproved: the checksum of all of them differs"


@pytest.fixture(scope="module")
def blocks() -> list[bytes]:
    """Blocks of a thousand bytes of TEXT, as they lie in a file."""
    coded = io.BytesIO()
    compress_stream(io.BytesIO(TEXT), coded, level=1, block_size=1_000)
    (stream,) = read_index(coded)
    raw = coded.getvalue()
    return [raw[block.coded_offset : block.coded_offset + block.coded_length] for block in stream.blocks]


HEADER = container.header_bytes({"level": 1, "numerics": 1})


def rebuilt(blocks: list[bytes], checksum: int) -> bytes:
    """Return a file of these blocks, with an index that fits them."""
    index = Index(len(HEADER), [(1_000, len(block)) for block in blocks], checksum)
    return HEADER + b"".join(blocks) + index_bytes(index)


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 1, 3), (0, 1, 1, 2, 3)], ids=["swapped", "missing", "doubled"])
@pytest.mark.parametrize("walks", [False, True])
def test_blocks_in_another_order_are_never_taken_for_the_file(blocks, order, walks):
    """Whole blocks with an index that fits them, found by the index and from the front."""
    (stream,) = read_index(io.BytesIO(long(TEXT, 1)))
    data = rebuilt([blocks[i] for i in order], stream.checksum)
    restored, damage = salvage(data + b"x" * walks)
    assert restored == b"".join(TEXT[1_000 * i : 1_000 * (i + 1)] for i in order)
    assert damage[0].startswith(UNPROVED.format(1_000 * len(order)))
    assert len(damage) == 1 + walks
    assert salvage(rebuilt(blocks, stream.checksum)) == (TEXT, ())


def test_what_a_lost_index_could_prove_is_named(blocks):
    whole = rebuilt(blocks, 0)
    damaged = whole[:-12] + bytes([whole[-12] ^ 1]) + whole[-11:]
    restored, damage = salvage(damaged)
    assert restored == TEXT
    assert damage == (
        "the order of the blocks in bytes 0 to 4000 is unproved, and whether they are all: "
        "the index with the checksum of all of them is lost",
    )


def damaged(blocks: list[bytes]) -> bytes:
    """Damage the second of four blocks."""
    return rebuilt([blocks[0], blocks[1][:-30] + bytes(30), *blocks[2:]], 0)


def test_what_is_missing_is_zeros_or_left_out(blocks):
    restored, damage = salvage(damaged(blocks))
    assert restored == TEXT[:1_000] + bytes(1_000) + TEXT[2_000:]
    assert salvage(damaged(blocks), missing="skip") == (TEXT[:1_000] + TEXT[2_000:], damage)
    assert damage == (
        "bytes 1000 to 2000 are lost: their block is damaged",
        "the order of the other blocks in bytes 0 to 4000 is unproved: the checksum of all of them cannot be compared",
    )
    with pytest.raises(OptionError, match="missing must be one of zeros, skip, got 'ones'"):
        salvage(damaged(blocks), missing="ones")


def test_a_block_whose_length_contradicts_the_index_is_lost(blocks):
    """Its header is whole and names one byte more, or fewer, than the index has room for."""
    for change in (1, -1):
        header = container.read_block_header(io.BytesIO(blocks[1]))
        lengths = header.raw_length, header.payload_length + change
        lying = container.block_header_bytes(header.kind, *lengths, header.checksum) + blocks[1][header.size :]
        restored, damage = salvage(rebuilt([blocks[0], lying, *blocks[2:]], 0))
        assert restored == TEXT[:1_000] + bytes(1_000) + TEXT[2_000:]
        assert damage[0] == "bytes 1000 to 2000 are lost: the index gives other lengths than their block"


def test_a_damaged_header_is_named_though_every_byte_comes_back():
    raw = inputs.random_bytes(100_000)
    coded = bytearray(squeeze.compress(raw, 1))
    assert salvage(bytes(coded)) == (raw, ())
    coded[5] ^= 1
    assert salvage(bytes(coded)) == (
        raw,
        ("the stream at byte 0 of the file: the header is damaged: its checksum differs",),
    )


def lost_blocks(count: int) -> bytes:
    """Return a short file whose blocks are all damaged, and claim the largest length."""
    block = b"\xff" * container.MAX_BLOCK.bit_length()
    index = Index(len(HEADER), [(container.MAX_BLOCK, len(block))] * count, 0)
    return HEADER + block * count + index_bytes(index)


def test_holes_take_no_room_on_the_disk(tmp_path):
    path = tmp_path / "restored"
    with path.open("wb") as sink:
        totals = decompress_stream(io.BytesIO(lost_blocks(1)), sink, salvage=True)
    assert totals.raw == path.stat().st_size == container.MAX_BLOCK
    assert path.stat().st_blocks * 512 < 1 << 20
    assert totals.damage == ("bytes 0 to 268435456 are lost: their block is damaged",)


def test_a_file_that_holds_something_already_gets_zeros(tmp_path, blocks):
    path, expected = tmp_path / "restored", TEXT[:1_000] + bytes(1_000) + TEXT[2_000:]
    for flags in (os.O_RDWR, os.O_RDWR | os.O_APPEND):
        path.write_bytes(b"x" * 10_000)
        with os.fdopen(os.open(path, flags), "r+b" if flags == os.O_RDWR else "ab") as sink:
            decompress_stream(io.BytesIO(damaged(blocks)), sink, salvage=True)
        assert expected in path.read_bytes()


def test_a_small_file_does_not_become_gigabytes_of_zeros(tmp_path):
    data = lost_blocks(100)
    assert len(data) < 3_600
    said = r"^zeros for 536,870,912 missing bytes or more are too many for a file of [\d,]+: leave them out with "
    with (tmp_path / "restored").open("wb") as sink, pytest.raises(LimitError, match=said):
        decompress_stream(io.BytesIO(data), sink, salvage=True)
    assert decompress_stream(io.BytesIO(data), None, salvage=True, missing="skip").raw == 0
    pipe = io.BytesIO()
    with pytest.raises(LimitError, match=said):
        decompress_stream(io.BytesIO(data), pipe, salvage=True)
    assert pipe.getvalue() == b""
    allowed = Limits(output=container.MAX_BLOCK * 100)
    assert decompress_stream(io.BytesIO(data), None, salvage=True, limits=allowed).raw == container.MAX_BLOCK * 100
    with pytest.raises(LimitError, match=r"raise it with `limits\.output`"):
        decompress_stream(io.BytesIO(data), None, salvage=True, limits=Limits(output=1_000))


def test_a_limit_stops_what_is_undamaged_too(blocks, monkeypatch):
    with pytest.raises(LimitError, match=r"^3,000 bytes or more would be written"):
        salvage(damaged(blocks), missing="skip", limits=Limits(output=2_500))
    with monkeypatch.context() as patch, pytest.raises(LimitError, match=r"^4,000 bytes or more would be written"):
        patch.delattr("squeeze.codecs.stream.salvage.decode_block")  # told from the lengths
        salvage(damaged(blocks), limits=Limits(output=3_500))
    assert len(salvage(damaged(blocks), missing="skip", limits=Limits(output=3_000))[0]) == 3_000


def test_a_pipe_is_kept_as_far_as_memory_allows(blocks):
    pipe = type("Pipe", (io.BytesIO,), {"seekable": lambda self: False})
    assert decompress_stream(pipe(damaged(blocks)), None, salvage=True).raw == 4_000
    with pytest.raises(LimitError, match=r"^salvaging what comes through a pipe needs"):
        decompress_stream(pipe(damaged(blocks)), None, salvage=True, limits=Limits(memory=100))


def test_what_is_not_the_files_fault_is_an_error(monkeypatch):
    coded = squeeze.compress(b"some text " * 500, 1)

    def fails(*rest, **more):
        raise SqueezeError("the file of the package is damaged: install squeeze again")

    monkeypatch.setattr("squeeze.codecs.stream.salvage.decode_block", fails)
    with pytest.raises(SqueezeError, match="install squeeze again"):
        squeeze.decompress_stream(io.BytesIO(coded), io.BytesIO(), salvage=True)
