"""Facsimile in TIFF and PDF becomes rows of bits, and comes back, also by the naive coder."""

import base64
import struct
import zlib

import numpy as np
import pytest

import squeeze
from squeeze.codecs.image.layout import Layout
from squeeze.codecs.parse.fax.codes import BLACK, MODES, WHITE
from squeeze.codecs.parse.fax.reading import ONE, TAGGED, TWO
from squeeze.codecs.parse.fax.wrapper import Fax, Page
from squeeze.codecs.parse.fax.writing import Form, write
from squeeze.codecs.parse.room import Room
from squeeze.codecs.tiff import find_faxes
from squeeze.errors import DamagedError
from tests.codecs.parse.trees import wrappers
from tests.makers import faxes, images
from tests.references import naive_fax

NOTHING = np.empty(0, np.uint8)
# 24 rows of 60 pixels, as libtiff 4.7 wrote them: group 4; group 3 of one dimension; and of two, filled.
LIBTIFF = {
    TWO: b"$UzLmrk|4^GdXdmgdIISHMP9B)6>##|4;w_|NrfO?V^WY_>3ZlYinp;o}q<nYa3f!aoTDlzytt5",
    ONE: b"02HtRO8^jpOhf<(FuWAt0t_!0=5PU-(ZlBq-~+;amsuPDa4tM{@z4Nq!^`Wwpa9#)ch`MD0lVwIyXpW9-(B_JPylZF@2>iQ18*JQUG)G593l"
    b"L^yXpWA1%x}tZyf*!g!?YCH~`G(;q!)Y0S05A80K&R1{Z>y073~d5CAD)0+s+NU;",
    TAGGED: b"00E_d0YCwS5@H|#0VbRP0fP(1Ih+6i8JxJ&zya`|W!6Uk0VcM$00HBNm)Ctj0VLo200G_g-(B?p0e}1e0p0cAUG)F~TK~WS<Agt#"
    b"*L^?%L}3"
    b"&=TUY=A@SkPYM*sl^6|JlQ0fRBmjB_{u0Y@AF0fZ7_AOHafzyYOz0YC",
}


def opened(data: bytes) -> list[bytes]:
    """Return the rows of the faxes in data, which comes back as it was."""
    found = wrappers(data, Fax.kind)
    for child in found:
        closed = Fax().close(child.node.own, NOTHING, child.found.extra).tobytes()
        assert closed == naive_fax.close(child.node.own.tobytes(), child.found.extra)
        assert child.node.content and Layout(*child.node.content.form).bits == 1
    return [child.node.own.tobytes() for child in found]


@pytest.mark.parametrize("dimensions", LIBTIFF)
def test_streams_of_libtiff_become_the_rows_that_it_had(dimensions):
    stream, pixels = base64.b85decode(LIBTIFF[dimensions]), np.packbits(images.page(60, 24), axis=1)
    found = Fax(Page(60, 24, dimensions)).open(stream, 0, Room(1 << 16))
    assert found and found.size == len(stream) and found.content.tobytes() == pixels.tobytes()


@pytest.mark.parametrize("name", faxes.TIFFS)
def test_strips_of_tiff_become_rows(name):
    assert b"".join(opened(b"before" + faxes.tiff(name))) == faxes.ROWS


@pytest.mark.parametrize("name", faxes.PDFS)
def test_images_of_pdf_become_rows(name):
    assert opened(b"%PDF-1.4\n" + faxes.pdf(name)) == [faxes.ROWS]


@pytest.mark.parametrize("outer", [zlib.compress, lambda data: base64.a85encode(data, wrapcol=76) + b"~>"])
def test_a_fax_in_another_filter_becomes_rows(outer):
    data = faxes.pdf("group 4", filters=b"[/FlateDecode /CCITTFaxDecode]")
    start, end = data.index(b"stream\r\n") + 8, data.index(b"\nendstream")
    assert opened(data[:start] + outer(data[start:end]) + data[end:]) == [faxes.ROWS]


def test_a_page_takes_half_of_its_closed_size():
    data = faxes.tiff("group 4", images.page(900, 600), 1)
    coded = squeeze.compress(data, 3)
    assert squeeze.decompress(coded) == data
    assert len(coded) < 0.5 * len(squeeze.compress(data, 3, parse=False))


@pytest.mark.parametrize(("codes", "number", "bits"), [(WHITE, 104, 13), (BLACK, 104, 13), (MODES, 9, 7)])
def test_no_code_begins_another(codes, number, bits):
    assert codes.values.size == number
    for which, (value, length) in enumerate(zip(codes.values, codes.lengths, strict=True)):
        assert set(codes.found[value << bits - length : value + 1 << bits - length]) == {16 * which + length}


@pytest.mark.parametrize("period", [0, 1, 2, 3])
@pytest.mark.parametrize("flags", [0, 1, 2, 3])
@pytest.mark.parametrize("density", [0.02, 0.5, 0.97])
def test_any_pixels_are_coded_by_the_specification(period, flags, density):
    pixels = (np.random.default_rng(period).random((9, 3000 if density < 0.1 else 77)) < density).astype(np.uint8)
    pixels[4:6] = 1
    pixels[5, 2700:] = pixels[6] = 0
    packed, form = np.packbits(pixels, axis=1), Form(pixels.shape[1], flags, period, 3)
    assert write(packed, form).tobytes() == faxes.coded(pixels, flags, period, 3)


def test_rows_up_to_one_that_is_damaged_are_opened():
    data = faxes.pdf("group 4")
    at = data.index(b"\nendstream") - 40
    (rows,) = opened(data[:at] + bytes(6) + data[at + 6 :])
    assert faxes.ROWS.startswith(rows[:-19]) and len(rows) > len(faxes.ROWS) // 2


@pytest.mark.parametrize(
    "stream", [b"", b"\0\1", b"\xff" * 60, bytes(90), b"\x02\x00" * 40, b"\x00\x10\x01" * 9, b"\x01\xff" * 50]
)
def test_other_streams_come_back(stream):
    data = faxes.pdf("group 3, mixed")
    opened(data[: data.index(b"stream\r\n") + 8] + stream + b"\nendstream\n")


def test_uncompressed_mode_stays_closed():
    data = faxes.pdf("group 4")
    assert opened(data[: data.index(b"stream\r\n") + 8] + b"\x03\xc0" * 90 + b"\nendstream\n") == []


def test_content_without_room_stays_closed_or_is_cut():
    stream = faxes.coded(np.zeros((4000, 1000), np.uint8), 0, 1, 0)
    room = Room(5_000)
    found = Fax(Page(1000, 4000, 1)).open(stream, 0, room)
    assert found and found.content.size <= 5_000
    assert Fax(Page(1000, 4000, 1)).open(stream, 0, Room(100)) is None


def test_rows_that_are_read_in_vain_cost_time():
    room = Room(1 << 20)
    before = room.attempts
    assert Fax(Page(60_000, 0, 0)).open(b"\xff" * 99, 0, room) is None
    assert before - room.attempts > 60_000


def test_bits_that_are_reversed_cost_time_as_they_are_read():
    room = Room(1 << 20)
    before = room.attempts
    assert Fax(Page(8, 9, TWO, is_reversed=True, size=50_000)).open(bytes(60_000), 0, room) is None
    assert 50_000 <= before - room.attempts < 60_000


def test_more_zeros_than_fill_a_byte_end_a_fax():
    pixels = faxes.PIXELS[:8]
    first, rest = (faxes.coded(part, 1, 0, 0) for part in (pixels[:3], pixels[3:]))
    assert opened_rows(faxes.coded(pixels, 3, 0, 0)) == faxes.ROWS[: 8 * 19]
    assert opened_rows(first + b"\0" + rest) == faxes.ROWS[: 3 * 19]


def opened_rows(stream: bytes) -> bytes:
    """Return the rows of group 3, each behind an end of a line."""
    found = Fax(Page(150, 8, ONE)).open(stream, 0, Room(1 << 16))
    assert found and stream.startswith(Fax().close(found.content, NOTHING, found.extra).tobytes())
    return found.content.tobytes()


def test_strips_without_bytes_are_none():
    data = faxes.tiff("group 4", strips=3)
    sizes = [fax.size for _, fax in find_faxes(data)]
    packed = struct.pack("<3I", *sizes)
    assert len(sizes) == 3 and data.count(packed) == 1
    assert list(find_faxes(data.replace(packed, bytes(12)))) == []


def test_a_file_says_how_its_strips_are_coded():
    data = faxes.tiff("group 3, mixed, filled", strips=7)
    found = [fax for _, fax in find_faxes(data)]
    assert [fax.rows for fax in found] == [9] * 6 + [6]
    assert {(fax.columns, fax.group, fax.is_mixed, fax.is_reversed) for fax in found} == {(150, 3, True, False)}


@pytest.mark.parametrize(
    "extra",
    [b"", b"\x96\1", b"\x96\1\0\1\2", b"\0\0\1\2\0", b"\x96\1\x08\1\2\0", b"\x96\1\0\1\7\0", b"\x96\1\0\1\2\0\0"],
)
def test_refuses_impossible_closings(extra):
    with pytest.raises(DamagedError):
        Fax().close(np.zeros(38, np.uint8), NOTHING, extra)


@pytest.mark.parametrize("size", [0, 37])
def test_refuses_a_part_of_a_row(size):
    with pytest.raises(DamagedError, match="rows of a fax are impossible"):
        Fax().close(np.zeros(size, np.uint8), NOTHING, b"\x96\1\0\1\2\0")
