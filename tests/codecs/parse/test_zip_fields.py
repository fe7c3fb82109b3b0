"""Fields that follow from zip members are left out of what is coded, and filled in again."""

import io
import struct
import zipfile

import pytest

from squeeze.codecs.parse import tree
from squeeze.errors import DamagedError
from tests.codecs.parse.trees import closed, parsed, written
from tests.makers import inputs, wrapped

TEXTS = {f"part-{number}.txt": text for number, text in enumerate(wrapped.TEXTS)}


class Pipe(io.BytesIO):
    """A file that cannot seek, so that zip members have data descriptors."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: int) -> int:
        raise OSError


def streamed() -> bytes:
    file = Pipe()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in TEXTS.items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def with_stored_members() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("noise"), inputs.random_bytes(300))
        for name, text in TEXTS.items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo("more noise"), inputs.random_bytes(300))
    return file.getvalue()


ARCHIVE = wrapped.zip_archive(TEXTS)
ARCHIVES = {
    "plain": (ARCHIVE, 5),
    "streamed": (streamed(), 6),
    "without signatures": (streamed().replace(b"PK\7\x08", b""), None),
    "with stored members": (with_stored_members(), 5),
    "behind other bytes": (b"#!/bin/sh\n" + ARCHIVE, 5),
    "two in a row": (ARCHIVE + ARCHIVE, 5),
    "without a directory": (ARCHIVE[: ARCHIVE.index(b"PK\1\2")], 1),
    "zeros in place of the end": (ARCHIVE[:-22] + bytes(60), 1),
    "with a wrong sum": (ARCHIVE[:14] + b"1234" + ARCHIVE[18:], None),
    "with a wrong offset": (ARCHIVE[:-6] + struct.pack("<I", 9) + ARCHIVE[-2:], None),
    "one name twice": (wrapped.zip_archive({"a": TEXTS["part-0.txt"]}) * 2, 5),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_come_back_and_flags_say_which_fields_were_left_out(name):
    data, flags = ARCHIVES[name]
    root = parsed(data)
    assert closed(root, len(data)) == data
    extras = [child.found.extra for child in root.children if child.found]
    assert len(extras) in (1, 2, 4, 8)
    assert flags is None or extras == [bytes([flags]), *[bytes([flags & 3])] * (len(extras) - 1)]


def test_sums_sizes_and_directories_are_zeros():
    own = parsed(ARCHIVE).own.tobytes()
    assert own[14:26] == bytes(12)
    first = own.index(b"PK\1\2")
    second = first + 46 + len("part-0.txt")
    assert own[second:-22] == bytes(len(own) - 22 - second)
    assert own[-22:] == b"PK\5\6" + bytes(18)


def test_one_wrong_field_leaves_the_others_out():
    extras = [child.found.extra for child in parsed(ARCHIVES["with a wrong sum"][0]).children if child.found]
    assert extras == [b"\4", b"\1", b"\1", b"\1"]


@pytest.mark.parametrize("extra", [b"\0", b"\x10", b"\5\5"])
def test_refuses_impossible_flags(extra):
    root = parsed(ARCHIVE)
    tree_bytes, opened = written(root)
    at = tree_bytes.index(b"\1\5")
    damaged = tree_bytes[:at] + bytes([len(extra)]) + extra + tree_bytes[at + 2 :]
    with pytest.raises(DamagedError):
        tree.close(tree.read(damaged, opened), len(ARCHIVE))
