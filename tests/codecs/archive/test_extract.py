"""Extracting a tar into a folder: everything or nothing, and nothing outside the folder."""

import io
import tarfile
from pathlib import Path

import pytest

from squeeze.codecs.archive.extract import Extraction
from squeeze.errors import FormatError, SqueezeError

pytestmark = pytest.mark.usefixtures("in_folder")


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def tar_of(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def extract(data: bytes, folder: str = "out", overwrite: bool = False) -> int:
    with Extraction(Path(folder), overwrite) as extraction:
        extraction.read(io.BytesIO(data))
        extraction.finish()
    return extraction.members


def contents(folder: str = "out") -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"/"
        for path in sorted(Path(folder).rglob("*"))
    }


def test_files_folders_links_modes_and_times():
    data = tar_of(
        member("d/", type=tarfile.DIRTYPE, mode=0o750, mtime=1_500_000_000),
        member("d/a", b"a", mode=0o640, mtime=1_400_000_000),
        member("d/run", b"#!", mode=0o755),
        member("d/link", type=tarfile.SYMTYPE, linkname="a"),
        member("d/same", type=tarfile.LNKTYPE, linkname="d/a", mode=0o640, mtime=1_400_000_000),
        member("./d/empty", type=tarfile.DIRTYPE, mode=0o700),
    )
    assert extract(data) == 6
    assert contents() == {"d": b"/", "d/a": b"a", "d/empty": b"/", "d/link": b"a", "d/run": b"#!", "d/same": b"a"}
    assert Path("out/d/link").readlink() == Path("a") and Path("out/d/a").samefile("out/d/same")
    modes = {name: Path("out/d", name).stat().st_mode & 0o777 for name in ("", "a", "run", "empty")}
    assert modes == {"": 0o750, "a": 0o640, "run": 0o755, "empty": 0o700}
    assert Path("out/d").stat().st_mtime == 1_500_000_000 and Path("out/d/a").stat().st_mtime == 1_400_000_000


HOSTILE = {
    "an absolute name": member("/tmp/squeeze-hostile", b"x"),
    "a name with dots": member("d/../../up", b"x"),
    "a way up": member("../up", b"x"),
    "an absolute link": member("d/l", type=tarfile.SYMTYPE, linkname="/etc"),
    "a link that leads out": member("d/l", type=tarfile.SYMTYPE, linkname="../../up"),
    "a hard link that leads out": member("d/l", type=tarfile.LNKTYPE, linkname="../../up"),
    "a device": member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    "a pipe": member("pipe", type=tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_refuses_a_member_that_leads_out_or_is_a_device(name: str):
    Path("box").mkdir()
    with pytest.raises(SqueezeError, match=r"refused, and nothing was extracted$") as error:
        extract(tar_of(member("good", b"x"), HOSTILE[name]), "box/out")
    assert "\n" not in str(error.value)
    assert not list(Path("box").iterdir()) and not Path("/tmp/squeeze-hostile").exists()


def test_refuses_a_member_below_a_link():
    data = tar_of(
        member("d", type=tarfile.DIRTYPE), member("l", type=tarfile.SYMTYPE, linkname="d"), member("l/a", b"x")
    )
    with pytest.raises(SqueezeError, match="l/a is below a link"):
        extract(data)
    assert not Path("out").exists()


def test_refuses_a_header_that_is_larger_than_memory_should_hold():
    info, _ = member("long", type=tarfile.XHDTYPE)
    info.size = 1 << 30
    with pytest.raises(FormatError, match="a header of 1,073,741,824 bytes"):
        extract(info.tobuf(tarfile.USTAR_FORMAT))
    assert not Path("out").exists()


@pytest.mark.parametrize("data", [b"", b"no tar" * 200, tar_of(member("a", bytes(5000)))[:2000]])
def test_refuses_what_is_not_a_whole_tar(data: bytes):
    with pytest.raises(FormatError, match="not a whole tar"):
        extract(data)
    assert not Path("out").exists()


def test_a_file_in_the_way_stops_everything_unless_it_may_be_overwritten():
    Path("out/d").mkdir(parents=True)
    for name in ("a", "other"):
        Path("out/d", name).write_bytes(b"old")
    data = tar_of(member("d", type=tarfile.DIRTYPE), member("d/a", b"new"), member("d/b", b"new"))
    with pytest.raises(SqueezeError, match="out/d/a already exists"):
        extract(data)
    assert contents() == {"d": b"/", "d/a": b"old", "d/other": b"old"}
    extract(data, overwrite=True)
    assert contents() == {"d": b"/", "d/a": b"new", "d/b": b"new", "d/other": b"old"}


def test_never_writes_through_a_link_in_the_folder():
    Path("out").mkdir()
    Path("elsewhere").mkdir()
    Path("out/d").symlink_to("../elsewhere")
    data = tar_of(member("d", type=tarfile.DIRTYPE), member("d/a", b"new"))
    for overwrite in (False, True):
        with pytest.raises(SqueezeError, match="out/d"):
            extract(data, overwrite=overwrite)
    assert not list(Path("elsewhere").iterdir())


def test_nothing_stays_if_the_run_is_stopped():
    class Stops(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() >= 1 << 20:
                raise KeyboardInterrupt
            return super().read(min(size or -1, 1 << 19))

    data = tar_of(member("a", bytes(1 << 19)), member("b", bytes(1 << 21)))
    with pytest.raises(KeyboardInterrupt), Extraction(Path("out"), False) as extraction:
        extraction.read(Stops(data))
    assert not Path("out").exists()
