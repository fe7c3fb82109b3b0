"""Estimates of opened sizes are those of the contents, and lies in headers are not believed."""

import io

import pytest

from squeeze.codecs.parse.sizes import opened_size
from tests.makers import gifs, inputs, wrapped

TEXT = inputs.words(40_000)
ARCHIVE = wrapped.zip_archive({"a": TEXT, "b": TEXT[:9_000]})


def estimated(data: bytes) -> int:
    file = io.BytesIO(data)
    found = opened_size(file, len(data))
    assert file.tell() == 0
    return found


def test_a_zip_archive_has_its_members_and_what_is_around_them():
    assert 49_000 < estimated(ARCHIVE) < 49_400


def test_gzip_and_png_name_their_size():
    assert estimated(wrapped.gzip_file(TEXT)) == len(TEXT)
    assert estimated(wrapped.png(TEXT[:6_400])) == 6_500
    picture = gifs.gif(60, [gifs.image(60, gifs.packed(gifs.codes_of(TEXT[:6_000], 8), 8), 8, 100)], 8, 100)
    assert estimated(picture) == len(picture) + 6_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK",
        b"text",
        TEXT,
        ARCHIVE[:-9],
        ARCHIVE[:-8] + b"\xff\xff\xff\xff" + ARCHIVE[-4:],
        wrapped.gzip_file(TEXT)[:-4] + b"\xff\xff\xff\xff",
        wrapped.png(TEXT[:640])[:16] + b"\xff" * 8 + wrapped.png(TEXT[:640])[24:],
    ],
)
def test_others_and_lies_have_their_own_size(data):
    assert estimated(data) == len(data)
