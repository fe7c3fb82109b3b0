"""`.sqz` files in fsspec: the protocol by its entry point, the codec by its import, and what reads through them."""

import base64
import gzip
import io
import json
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import fsspec
import pytest

import squeeze
from squeeze.integrations.fsspec import SqzFileSystem, codec
from tests.makers import inputs
from tests.makers.remote import Store

ROOT = Path(__file__).parents[2]
ROWS = [{"number": number, "word": f"word {number}"} for number in range(300)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()

pytestmark = pytest.mark.usefixtures("in_folder")


@pytest.fixture
def rows():
    Store.reset()
    coded = squeeze.compress(LINES, 1)
    Path("rows.jsonl.sqz").write_bytes(coded)
    Store.put("bucket/rows.jsonl.sqz", coded)
    return coded


def entry_points(group):
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][group]
    return [EntryPoint(name, value, group) for name, value in table.items()]


def test_the_codec_reads_what_it_infers(rows):
    for url in ("rows.jsonl.sqz", "fake://bucket/rows.jsonl.sqz"):
        for compression in ("infer", "sqz"):
            with fsspec.open(url, compression=compression) as file:
                assert file.read() == LINES
        with fsspec.open(url, "rt", compression="infer") as file:
            assert [json.loads(line) for line in file] == ROWS


def test_the_codec_writes():
    with fsspec.open("new.jsonl.sqz", "wb", compression="infer") as file:
        for line in LINES.splitlines(keepends=True):
            file.write(line)
    assert squeeze.decompress(Path("new.jsonl.sqz").read_bytes()) == LINES
    with fsspec.open("new.txt.sqz", "wt", compression="infer", encoding="utf-8") as file:
        file.write("öäü")
    assert squeeze.decompress(Path("new.txt.sqz").read_bytes()).decode() == "öäü"


def test_a_pipe_is_read_as_a_whole():
    packed = gzip.compress(squeeze.compress(LINES, 1))

    class Pipe(gzip.GzipFile):
        def seekable(self):
            return False

    with codec(Pipe(fileobj=io.BytesIO(packed))) as file:
        assert file.read() == LINES


def test_the_protocol_is_a_folder_of_one_file(rows):
    for name in ("", "rows.jsonl"):
        with fsspec.open(f"sqz://{name}::fake://bucket/rows.jsonl.sqz") as file:
            file.seek(len(LINES) - 5)
            assert file.read() == LINES[-5:]
    files, _ = fsspec.core.url_to_fs("sqz://::fake://bucket/rows.jsonl.sqz")
    assert isinstance(files, SqzFileSystem)
    assert files.ls("", detail=False) == ["rows.jsonl"] and files.info("rows.jsonl")["size"] == len(LINES)
    with pytest.raises(FileNotFoundError):
        files.open("other")
    with pytest.raises(NotImplementedError):
        files.open("rows.jsonl", "wb")


def test_a_range_takes_its_block_alone():
    Store.reset()
    sink, data = io.BytesIO(), base64.b64encode(inputs.random_bytes(300_000))
    squeeze.compress_stream(io.BytesIO(data), sink, level=1, block_size=1 << 16)
    Store.put("bucket/long.sqz", sink.getvalue())
    for url, options in (("sqz://::fake://bucket/long.sqz", {}), ("fake://bucket/long.sqz", {"compression": "sqz"})):
        Store.requests.clear()
        with fsspec.open(url, **options) as file:
            index = len(Store.ranges())
            file.seek(len(data) // 2)
            assert file.read(10) == data[len(data) // 2 :][:10]
        assert index <= 2 and len(Store.ranges()) == index + 1


def test_entry_points_lead_somewhere():
    for entry in entry_points("fsspec.specs"):
        assert entry.load() is SqzFileSystem and entry.name == SqzFileSystem.protocol
    pytest.importorskip("numcodecs")
    assert [entry.load().codec_id for entry in entry_points("numcodecs.codecs")] == ["squeeze"]


def installed(tmp_path):
    """Make a folder in which importlib finds the entry points of an installed squeeze."""
    info = tmp_path / "site" / "squeeze_neural-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: squeeze-neural\nVersion: 0\n")
    lines = []
    for group in ("fsspec.specs", "numcodecs.codecs"):
        lines += [f"[{group}]", *(f"{entry.name} = {entry.value}" for entry in entry_points(group))]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return info.parent


def printed(code, site):
    path = f"import sys; sys.path[:0] = [{str(site)!r}, {str(ROOT)!r}]; "
    done = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_fsspec_finds_the_protocol_without_an_import(rows, tmp_path):
    code = "import fsspec; print(fsspec.open('sqz://::file://' + sys.argv[-1], 'rt').open().readline())"
    code = code.replace("sys.argv[-1]", repr(str(Path("rows.jsonl.sqz").resolve())))
    assert json.loads(printed(code, installed(tmp_path))) == ROWS[0]


def test_numcodecs_finds_the_codec(tmp_path):
    numcodecs = pytest.importorskip("numcodecs")
    assert numcodecs
    code = (
        "import numcodecs, numpy; codec = numcodecs.get_codec({'id': 'squeeze', 'level': 1}); "
        "values = numpy.arange(1000); coded = codec.encode(values); out = numpy.empty_like(values); "
        "codec.decode(coded, out); "
        "print(codec.get_config(), (out == values).all(), len(coded) < values.nbytes, len(codec.decode(coded)))"
    )
    assert printed(code, installed(tmp_path)) == "{'id': 'squeeze', 'level': 1} True True 8000"


def test_pandas_and_pyarrow_read_it(rows):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("fsspec", "2025.9", reason="fsspec is older than what the extra cloud asks for")
    frame = pandas.read_json("sqz://::fake://bucket/rows.jsonl.sqz", lines=True)
    assert frame.to_dict("records") == ROWS
    with fsspec.open("rows.jsonl.sqz", compression="infer") as file:
        assert pandas.read_json(file, lines=True).to_dict("records") == ROWS
    arrow = pytest.importorskip("pyarrow.json")
    with fsspec.open("rows.jsonl.sqz", compression="infer") as file:
        assert arrow.read_json(file).to_pylist() == ROWS


def test_a_file_of_the_codec_is_written_and_closed_by_its_own_block():
    with fsspec.filesystem("file").open("new.sqz", "wb", compression="sqz") as file:
        assert file.write(LINES[:50]) == 50 and file.tell() == 50
        file.write(LINES[50:])
    assert squeeze.decompress(Path("new.sqz").read_bytes()) == LINES
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.write(b"more")


def test_a_block_that_raises_writes_nothing(rows):
    before = dict(Store.objects)
    with pytest.raises(KeyError), fsspec.filesystem("fake").open("bucket/new.sqz", "wb", compression="sqz") as file:
        file.write(LINES)
        raise KeyError
    assert Store.objects == before and not Store.uploads
    file = fsspec.filesystem("fake").open("bucket/new.sqz", "wb", compression="sqz")
    file.write(LINES)
    del file
    assert Store.objects == before and not Store.uploads


@pytest.mark.parametrize("mode", ["wb", "wt"])
def test_a_block_of_fsspec_that_raises_writes_nothing(rows, mode):
    before, text = dict(Store.objects), LINES.decode() if mode == "wt" else LINES
    with pytest.raises(KeyError), fsspec.open("fake://bucket/new.sqz", mode, compression="sqz") as file:
        file.write(text)
        raise KeyError
    assert Store.objects == before and not Store.uploads
    with pytest.raises(KeyError), fsspec.open_files(["fake://bucket/new.sqz"], mode, compression="sqz") as files:
        files[0].write(text)
        raise KeyError
    assert Store.objects == before and not Store.uploads


@pytest.mark.parametrize("mode", ["wb", "wt"])
def test_what_is_written_while_an_error_is_handled_is_written(rows, mode):
    text = LINES.decode() if mode == "wt" else LINES

    def written():
        return squeeze.decompress(Store.objects.pop("bucket/new.sqz")) == LINES

    try:
        raise KeyError
    except KeyError:
        with fsspec.open("fake://bucket/new.sqz", mode, compression="sqz") as file:
            file.write(text)
    assert written()
    file = fsspec.open("fake://bucket/new.sqz", mode, compression="sqz").open()
    file.write(text)
    try:
        raise KeyError
    except KeyError:
        file.close()
    assert written()
    with fsspec.open("fake://bucket/new.sqz", mode, compression="sqz") as file:
        try:
            raise KeyError
        except KeyError:
            file.write(text)
    assert written()

    class Failing:
        def __exit__(self, *error):
            with fsspec.open("fake://bucket/new.sqz", mode, compression="sqz") as file:
                file.write(text)

        def __enter__(self):
            return self

    with pytest.raises(KeyError), Failing():
        raise KeyError
    assert written()
    with pytest.raises(KeyError), fsspec.open("fake://bucket/other", "wb"):
        with fsspec.open("fake://bucket/new.sqz", mode, compression="sqz") as file:
            file.write(text)
        raise KeyError
    assert written()


def test_what_cannot_be_compressed_leaves_nothing(rows):
    before = dict(Store.objects)
    file = fsspec.filesystem("fake").open("bucket/new.sqz", "wb", compression="sqz")
    file.write(LINES)
    file._options["level"] = 99
    with pytest.raises(squeeze.SqueezeError):
        file.close()
    del file
    assert Store.objects == before and not Store.uploads
