"""Commands on URLs: the same results as on files, few requests, and one line where a store fails."""

import base64
import io
import json
from pathlib import Path

import pytest

import squeeze
from squeeze.cli import COMMANDS
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.integrations.load_model import load_model
from squeeze.recipes.apply import apply
from squeeze.system import remote_errors
from tests.makers import inputs
from tests.makers.checkpoints import model_folder, tensors, write
from tests.makers.command import TEXT, call, fails, names, run, usage_error
from tests.makers.remote import Store
from tests.makers.web import serving

pytestmark = pytest.mark.usefixtures("in_folder")
URL = "fake://bucket/note.txt"


@pytest.fixture(autouse=True)
def store(in_folder):
    Store.reset()
    Store.put("bucket/note.txt", TEXT)


def put_folder(folder, key):
    for path in Path(folder).rglob("*"):
        if path.is_file():
            Store.put(f"{key}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def folder_at(key):
    return {name.removeprefix(f"{key}/"): data for name, data in Store.objects.items() if name.startswith(f"{key}/")}


def contents(folder):
    paths = [path for path in Path(folder).rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_a_file_goes_to_a_store_and_back():
    run("compress", "-1", URL)
    Path("note.txt").write_bytes(TEXT)
    run("compress", "-1", "note.txt")
    assert Store.objects["bucket/note.txt.sqz"] == Path("note.txt.sqz").read_bytes()
    run("test", f"{URL}.sqz")
    assert json.loads(run("list", "--json", f"{URL}.sqz").stdout)["file"] == f"{URL}.sqz"
    run("decompress", "-o", "fake://bucket/again.txt", f"{URL}.sqz")
    assert Store.objects["bucket/again.txt"] == TEXT
    run("decompress", "-o", "again.txt", f"{URL}.sqz")
    assert Path("again.txt").read_bytes() == TEXT
    assert run("decompress", "--range", "2:9", f"{URL}.sqz").stdout_bytes == TEXT[2:9]
    assert run("decompress", "-c", f"{URL}.sqz").stdout_bytes == TEXT
    run("compress", "-1", "-o", "fake://other/x.sqz", "note.txt")
    assert Store.objects["other/x.sqz"] == Store.objects["bucket/note.txt.sqz"]


def test_an_object_that_cannot_be_looked_at_stops_no_other(monkeypatch):
    info = Store.info

    def refusing(self, path, **options):
        if path.endswith("bad"):
            raise PermissionError("no")
        return info(self, path, **options)

    monkeypatch.setattr(Store, "info", refusing)
    for name in ("a", "bad", "c"):
        Store.put(f"bucket/tree/{name}", TEXT)
    said = fails("compress", "-1", "-q", "-r", "fake://bucket/tree")
    assert said == "Error: fake://bucket/tree/bad: access was refused (no): check the credentials\n"
    assert sorted(folder_at("bucket/tree")) == ["a", "a.sqz", "bad", "c", "c.sqz"]
    assert "fake://bucket/tree/bad: access" in fails("compress", "-1", "-f", "fake://bucket/tree/bad", URL)
    assert squeeze.decompress(Store.objects["bucket/note.txt.sqz"]) == TEXT


def test_local_urls_are_files():
    Path("note.txt").write_bytes(TEXT)
    run("compress", "-1", f"file://{Path.cwd()}/note.txt")
    assert names() == ["note.txt", "note.txt.sqz"]


def test_memory_needs_nothing_but_fsspec():
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/urls/note.txt", TEXT)
    run("compress", "-1", "memory://urls/note.txt")
    run("decompress", "-o", "memory://urls/again.txt", "memory://urls/note.txt.sqz")
    assert memory.cat("/urls/again.txt") == TEXT
    memory.rm("/urls", recursive=True)


def test_r_takes_every_object_of_a_prefix():
    for name in ("a", "sub/b", "sub/deep/c"):
        Store.put(f"bucket/tree/{name}", TEXT + name.encode())
    run("compress", "-1", "-r", "--rm", "fake://bucket/tree")
    assert sorted(folder_at("bucket/tree")) == ["a.sqz", "sub/b.sqz", "sub/deep/c.sqz"]
    run("test", "-r", "fake://bucket/tree")
    run("decompress", "-r", "--rm", "fake://bucket/tree/")
    assert folder_at("bucket/tree")["sub/deep/c"] == TEXT + b"sub/deep/c" and len(folder_at("bucket/tree")) == 3
    assert "is a directory; use -r" in fails("compress", "fake://bucket/tree")


def test_the_source_goes_only_when_the_result_is_there():
    Store.fail("complete", ConnectionResetError("reset"))
    assert "reset" in fails("compress", "-1", "--rm", URL)
    assert set(Store.objects) == {"bucket/note.txt"}
    Store.failing.clear()
    run("compress", "-1", "--rm", URL)
    assert set(Store.objects) == {"bucket/note.txt.sqz"}


def test_training_explaining_and_dictionaries():
    for number in range(9):
        Store.put(f"bucket/samples/{number}", TEXT[number : 900 + number])
    run("train", "-4", "-r", "fake://bucket/samples", "-o", "fake://bucket/notes.sqzp", "--learn-size", "2K")
    run("compress", "-D", "fake://bucket/notes.sqzp", URL)
    run("decompress", "-D", "fake://bucket/notes.sqzp", "-o", "again", f"{URL}.sqz")
    assert Path("again").read_bytes() == TEXT
    run("explain", "-q", "-1", URL)
    assert names() == ["again", "note.txt.html"]
    assert "download them first" in usage_error("train", "--adapter", "out", URL)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("decompress", "fake://bucket/none.sqz"), "fake://bucket/none.sqz: No such file or directory"),
        (("compress", "-1", "-o", "fake://bucket/note.txt", "fake://bucket/note.txt"), f"{URL}: input and output are"),
        (("compress", "-1", "-o", "fake://bucket/taken", URL), f"{URL}: fake://bucket/taken already exists; use -f"),
        (("list", "nothing://a"), "nothing://a: the scheme is unknown to fsspec"),
        (("verify", "fake://bucket/none.safetensors"), "fake://bucket/none.safetensors: No such file or directory"),
        (("inspect", "fake://bucket/none.safetensors"), "fake://bucket/none.safetensors: No such file or directory"),
        (("verify", URL), "fake://bucket/note.txt: "),
    ],
)
def test_errors_of_a_store_are_one_line(arguments, said):
    Store.put("bucket/taken", b"")
    before = dict(Store.objects)
    message = fails(*arguments)
    assert message.startswith(f"Error: {said}") and message.count("\n") == 1 and message.count("://") <= 2
    assert Store.objects == before and not Store.uploads


@pytest.mark.parametrize("error", [ConnectionResetError("reset by peer"), PermissionError("Access Denied")])
def test_a_store_that_breaks_in_the_middle_is_one_line(error, monkeypatch):
    monkeypatch.setattr(remote_errors, "_WAITS", (0.0,))
    data = base64.b64encode(inputs.random_bytes(300_000))
    Store.put("bucket/long.txt", data)
    Store.put("bucket/long.txt.sqz", squeeze.compress(data, 1))
    write("weights.safetensors", tensors(rows=400))
    Store.put("bucket/weights.safetensors", Path("weights.safetensors").read_bytes())
    run("pack", "weights.safetensors", "packed.safetensors")
    Store.put("bucket/packed.safetensors", Path("packed.safetensors").read_bytes())
    refused = isinstance(error, PermissionError)
    said = (
        "access was refused (Access Denied): check the credentials"
        if refused
        else "the connection broke: reset by peer"
    )
    kept = Path.cwd() / ".new.safetensors.packing"
    pack_says = "repeat the command to resume"
    pack_says = f"finished work is kept in {kept}: {pack_says}" if refused else f"{pack_says} (with {kept})"
    before, files = dict(Store.objects), names()
    for arguments in (
        ("compress", "-1", "-o", "new", "fake://bucket/long.txt"),
        ("test", "fake://bucket/long.txt.sqz"),
        ("pack", "fake://bucket/weights.safetensors", "new.safetensors"),
        ("verify", "fake://bucket/packed.safetensors"),
        ("unpack", "fake://bucket/packed.safetensors", "new.safetensors"),
        ("inspect", "fake://bucket/packed.safetensors"),
    ):
        Store.fail("get", error, after=arguments[0] != "compress")  # which reads all at once
        message, place = fails(*arguments), arguments[-2] if "://" in str(arguments[-2]) else arguments[-1]
        what_next = pack_says if arguments[0] == "pack" else "" if refused else "run again"
        assert message == f"Error: {place}: {said}{what_next and f'; {what_next}'}\n"
        left = [name for name in names() if name not in files and not name.endswith(".packing")]
        assert Store.objects == before and not Store.uploads and not left


def test_other_commands_say_that_they_take_paths():
    said = usage_error("densify", "fake://bucket/model", "out")
    assert said == (
        "Error: Invalid value for 'IN': 'fake://bucket/model' is a URL, and this takes a path: fetch the file first"
    )
    assert "is a URL" in usage_error("compress", "--model", "fake://bucket/model", URL)
    assert "--follow takes folders on this machine" in usage_error("pack", "--follow", "fake://bucket/run", "out")
    assert "quantize" in COMMANDS and "is a URL" in usage_error("quantize", "fake://bucket/model", "out")


@pytest.mark.parametrize("place", ["none", "none.safetensors", "fake://bucket/none", "memory://none/x", "http"])
def test_a_checkpoint_that_is_not_there_is_one_line(place):
    with serving({}) as (url, _):
        place = f"{url}/folder" if place == "http" else place
        for arguments in (("inspect",), ("history",), ("verify",), ("unpack", "out"), ("pack", "out")):
            done = call(arguments[0], place, *arguments[1:])
            assert done.exit_code == 1 and not done.stdout
            assert done.stderr == f"Error: {place}: No such file or directory\n"
    assert not names()


def test_a_file_that_is_not_a_checkpoint_is_one_line():
    Path("note.txt").write_bytes(TEXT)
    Path("empty").mkdir()
    for place in ("note.txt", URL):
        assert fails("inspect", place).startswith(f"Error: {place}: not a checkpoint: ")
    for command in ("inspect", "history", "verify"):
        assert fails(command, "empty").startswith("Error: empty: ")


def test_python_raises_the_same_messages():
    folder = "memory://none/model"
    calls = {
        "quantize": lambda: squeeze.quantize(folder, "rtn", out="out"),
        "quantize to": lambda: squeeze.quantize("model", "rtn", out=folder),
        "prune": lambda: squeeze.prune(folder, "magnitude", out="out"),
        "factorize": lambda: squeeze.factorize(folder, out="out"),
        "densify": lambda: squeeze.densify(folder, "out"),
        "delta": lambda: squeeze.delta("model", folder, out="out", bits=4),
        "delta of": lambda: squeeze.delta(folder, "model", out="out", bits=4),
        "apply": lambda: apply(folder, "model", "out"),
        "load_model": lambda: load_model(folder),
        "compress": lambda: squeeze.compress(TEXT, 7, model=folder),
    }
    for name, take in calls.items():
        with pytest.raises(squeeze.SqueezeError) as caught:
            take()
        assert str(caught.value) == f"{folder!r} is a URL, and this takes a path: fetch the file first", name
    assert not names()


def test_a_url_of_a_local_file_is_its_path():
    said = fails("densify", f"file://{Path.cwd()}/model", "out")
    assert said.startswith(f"Error: {Path.cwd()}/model: no such folder")


def test_a_checkpoint_goes_to_a_store_and_back():
    model_folder("model", tied=False)  # at URLs, equal tensors are not looked for
    put_folder("model", "hub/owner/model")
    run("pack", "fake://hub/owner/model", "fake://bucket/packed")
    run("pack", "model", "packed")
    assert folder_at("bucket/packed") == contents("packed")
    run("verify", "fake://bucket/packed")
    run("unpack", "fake://bucket/packed", "back")
    assert contents("back") == contents("model")
    run("unpack", "fake://bucket/packed", "fake://bucket/back")
    assert folder_at("bucket/back") == contents("model")
    assert run("inspect", "fake://bucket/packed").stdout == run("inspect", "packed").stdout
    assert run("inspect", "-q", "fake://hub/owner/model").stdout == run("inspect", "-q", "model").stdout
    assert "already exists" in fails("pack", "model", "fake://bucket/packed")
    run("pack", "-f", "model", "fake://bucket/packed")
    assert folder_at("bucket/packed") == contents("packed")


def test_differences_find_their_bases_in_a_store():
    write("base.safetensors", tensors(1))
    write("tuned.safetensors", tensors(1) | {"ids": ("I64", (1, 512), bytes(4_096))})
    for name in ("base", "tuned"):
        Store.put(f"bucket/{name}.safetensors", Path(f"{name}.safetensors").read_bytes())
    base = "fake://bucket/run/base.safetensors"
    run("pack", "fake://bucket/base.safetensors", base)
    run("pack", "--base", base, "fake://bucket/tuned.safetensors", "fake://bucket/run/tuned.safetensors")
    assert len(Store.objects["bucket/run/tuned.safetensors"]) < len(Store.objects["bucket/run/base.safetensors"])
    run("unpack", "fake://bucket/run/tuned.safetensors", "back.safetensors")
    assert Path("back.safetensors").read_bytes() == Path("tuned.safetensors").read_bytes()
    assert [line.split()[-1] for line in run("history", "fake://bucket/run/tuned.safetensors").stdout.splitlines()] == [
        "checkpoint",
        "fake://bucket/run/tuned.safetensors",
        base,
    ]


def test_a_range_of_a_large_file_takes_its_block_alone():
    data = base64.b64encode(inputs.random_bytes(300_000))
    sink = io.BytesIO()
    compress_stream(io.BytesIO(data), sink, level=1, block_size=1 << 16)
    Store.put("bucket/long.sqz", sink.getvalue())
    place = len(data) // 2
    with squeeze.open("fake://bucket/long.sqz") as file:
        index = Store.ranges()
        file.seek(place)
        assert file.read(1_024) == data[place : place + 1_024]
        blocks = Store.ranges()[len(index) :]
    assert len(index) == 2 and sum(end - begin for begin, end in index) <= 2 << 16
    assert len(blocks) == 1 and blocks[0][1] - blocks[0][0] < 1 << 16
    assert len(sink.getvalue()) > 4 << 16
