"""Central directories are differences from what the headers of the members say."""

import io
import struct
import zipfile

import numpy as np
import pytest

from squeeze.codecs.parse.zip_directory import exchange
from tests.makers import inputs, wrapped
from tests.makers.mutations import mutate
from tests.references import naive_zip

TEXTS = {f"part-{number}.txt": text for number, text in enumerate(wrapped.TEXTS)}


def archive(extra: bytes = b"", in_directory: bytes | None = None, comment: bytes = b"", names=TEXTS) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as sink:
        for number, name in enumerate(names):
            about = zipfile.ZipInfo(name, (2020, 1 + number, 2, 3, 4, 6))
            about.extra = extra
            sink.writestr(about, inputs.random_bytes(90, number), zipfile.ZIP_STORED)
            if in_directory is not None:
                about.extra = in_directory
            about.comment = comment
    return file.getvalue()


def in_another_order() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as sink:
        for name, text in TEXTS.items():
            sink.writestr(zipfile.ZipInfo(name), text)
        sink.filelist.reverse()
    return file.getvalue()


UNIX_TIMES = b"UT\x09\0\3abcdefgh", b"UT\5\0\3abcd"
ARCHIVES = {
    "stored": archive(),
    "deflated": wrapped.zip_archive(TEXTS),
    "extra fields": archive(UNIX_TIMES[0] + b"ux\2\0ab"),
    "shorter extra fields": archive(UNIX_TIMES[0] + b"ux\2\0ab", UNIX_TIMES[1] + b"ux\2\0ab"),
    "comments": archive(comment=b"none"),
    "another order": in_another_order(),
    "behind bytes": b"begin" + archive(),
    "offsets of the file": b"begin" + archive(),
    "in an archive": wrapped.zip_archive({"part-0.txt": b"inner"})[:-22] + archive(),
    "nested": archive(names=("a", "b")) + archive(names=("a", "c")) * 2,
    "cut": archive()[:-60],
    "without headers": archive()[archive().index(b"PK\1\2") :],
    "nothing": b"",
}


def differences(data: bytes) -> bytes:
    return exchange(np.frombuffer(data, np.uint8), [], {}, False).tobytes()


def restored(coded: bytes) -> bytes:
    return exchange(np.frombuffer(coded, np.uint8), [], {}, True).tobytes()


def by_format(coded: bytes) -> bytes:
    data = bytearray(coded)
    naive_zip.fill_directories(data, [], {})
    return bytes(data)


@pytest.mark.parametrize("name", ARCHIVES)
def test_directories_come_back(name):
    coded = differences(ARCHIVES[name])
    assert restored(coded) == ARCHIVES[name] == by_format(coded)


@pytest.mark.parametrize(
    ("name", "most"), [("stored", 12), ("extra fields", 12), ("shorter extra fields", 20), ("comments", 30)]
)
def test_directories_are_nearly_zeros(name, most):
    coded = differences(ARCHIVES[name])
    directory = coded[ARCHIVES[name].index(b"PK\1\2") :]
    assert sum(byte > 0 for byte in directory) <= most


def test_sums_of_stored_members_are_zeros():
    coded = differences(ARCHIVES["stored"])
    assert coded[14:18] == bytes(4) and coded[18:26] == struct.pack("<II", 90, 90)


def test_an_archive_stored_in_another_one_has_a_directory_of_zeros_too():
    file, inner = io.BytesIO(), archive()
    with zipfile.ZipFile(file, "w") as sink:
        sink.writestr("inner.jar", inner)
        sink.writestr("text", b"text")
    coded = differences(file.getvalue())
    assert restored(coded) == file.getvalue() == by_format(coded)
    begin = 30 + len("inner.jar")
    assert coded[begin : begin + len(inner)] == differences(inner)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_it_gets_it_does_what_the_format_says(seed):
    data, generator = ARCHIVES[sorted(ARCHIVES)[seed % len(ARCHIVES)]] or b"PK", np.random.default_rng(seed)
    for coded in (mutate(data, generator), mutate(differences(data), generator)):
        assert restored(coded) == by_format(coded)
