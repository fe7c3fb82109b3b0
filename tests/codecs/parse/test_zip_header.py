"""Headers of zip members are read as zipfile writes them, and found from their ends."""

import io
import zipfile

import pytest

from squeeze.codecs.parse import zip_header

EXTRA = b"ux\2\0ab"


def archive(method: int) -> tuple[bytes, zipfile.ZipInfo]:
    file, about = io.BytesIO(), zipfile.ZipInfo("folder/name.txt")
    about.extra, about.compress_type = EXTRA, method
    with zipfile.ZipFile(file, "w") as sink:
        sink.writestr(about, b"text " * 100)
    return b"before" + file.getvalue(), about


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_reads_what_zipfile_wrote(method):
    data, about = archive(method)
    header = zip_header.read(data, 6, len(data))
    assert (header.name, header.extra, header.method) == (b"folder/name.txt", EXTRA, method)
    assert header.sizes == (about.compress_size, about.file_size) and not header.is_streamed
    assert data[header.end : header.end + 4] == (b"text" if method == zipfile.ZIP_STORED else data[57:61])
    assert zip_header.ending_at(data, header.end) == header


def test_a_header_that_is_cut_off_is_none():
    data, _ = archive(zipfile.ZIP_STORED)
    end = zip_header.read(data, 6, len(data)).end
    for stop in range(6, end):
        assert zip_header.read(data[:stop], 6, stop) is None
        assert zip_header.ending_at(data, stop) is None
    assert zip_header.ending_at(data, end, begin=7) is None
