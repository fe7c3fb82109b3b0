"""Torch files that are damaged, that run code, or that ask for much memory are packed as bytes or refused."""

import contextlib
import io
import json
import pickle
import random
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import torch

import squeeze
from squeeze.checkpoint import pickled, torch_file, torch_storages
from squeeze.checkpoint.torch_storages import storages
from squeeze.errors import DamagedError, FormatError, LimitError, SqueezeError, TruncatedError
from squeeze.packing import training_run
from squeeze.system.limits import Limits
from tests.fuzz import mutations, tensorfiles
from tests.makers.checkpoints import model_folder, same
from tests.makers.command import call, fails, run
from tests.makers.torch_files import comes_back

pytestmark = pytest.mark.usefixtures("in_folder")


class Bomb:
    def __reduce__(self):
        return Path.touch, (Path("exploded"),)


@pytest.mark.parametrize("is_zip", [True, False])
def test_code_is_never_run(is_zip, training):
    torch.save({"bomb": Bomb(), "state": training.optimizer.state_dict()}, "bomb.pt",
               _use_new_zipfile_serialization=is_zip)  # fmt: skip
    totals = comes_back("bomb.pt")
    assert totals.notes[0].startswith("bomb.pt: names ") and "pathlib" in totals.notes[0]
    assert totals.notes[0].endswith(", which may run code when the file is loaded; packing ran none")
    assert not Path("exploded").exists() and totals.coded < 0.95 * totals.raw
    done = call("pack", "-f", "bomb.pt", "packed")
    assert (done.exit_code, done.stderr) == (0, f"Note: {totals.notes[0]}\n")
    assert json.loads(run("pack", "-qf", "--json", "bomb.pt", "packed").stdout)["notes"] == list(totals.notes)
    assert not Path("exploded").exists()


def test_nothing_is_unpickled(state, monkeypatch):
    def refused(*_):
        raise AssertionError

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refused)
    comes_back(state)


@pytest.mark.parametrize("data", [b"", b"x", pickle.dumps(Bomb()), b"PK\3\4" + bytes(100), bytes(200_000)])
def test_an_invalid_torch_file_is_packed_as_plain_bytes(data):
    Path("odd.bin").write_bytes(data)
    totals = comes_back("odd.bin")
    assert totals.notes[0].endswith("it is packed as plain bytes") and not Path("exploded").exists()


def test_an_invalid_torch_file_in_a_folder_is_copied():
    model_folder("model")
    Path("model/odd.bin").write_bytes(bytes(200_000))
    comes_back("model")
    assert same("model/odd.bin", "packed/odd.bin")


def test_every_truncation_is_restored(state):
    """Check that a truncated file is packed as plain bytes, since it is not one of torch."""
    whole = state.read_bytes()
    for size in (3, 29, 1000, len(whole) // 2, len(whole) - 1):
        Path("cut.pt").write_bytes(whole[:size])
        comes_back("cut.pt")


def test_mutated_files_are_restored(state):
    whole, generator = state.read_bytes(), random.Random(1)
    places = [*range(0, 3000, 211), *(len(whole) - 1 - n for n in range(0, 5000, 499))]
    for place in places:
        hurt = bytearray(whole)
        hurt[place] ^= 1 << generator.randrange(8)
        Path("hurt.pt").write_bytes(hurt)
        squeeze.pack("hurt.pt", "packed.pt", overwrite=True, verify=False)
        squeeze.unpack("packed.pt", "back.pt", overwrite=True)
        assert same("hurt.pt", "back.pt")


def test_other_zip_files_are_restored(state):
    """Entries that are compressed, and such that lie over each other."""
    with zipfile.ZipFile(state) as archive, zipfile.ZipFile("small.pt", "w", zipfile.ZIP_DEFLATED) as made:
        for entry in archive.infolist():
            made.writestr(entry.filename, archive.read(entry))
    comes_back("small.pt")
    with zipfile.ZipFile("other.pt", "w") as made:
        made.writestr("readme", b"text" * 50_000)
    assert comes_back("other.pt").coded < 50_000


@pytest.mark.parametrize("change", [{"places": [5]}, {"places": "x"}, {"format": 2}, {"places": [-1]}])
def test_refuses_a_description_that_contradicts_itself(state, change):
    squeeze.pack(state, "packed")
    path, text = Path("packed"), Path("packed").read_bytes()
    file = tensorfiles.parsed(text)
    described = json.loads(file.header["__metadata__"]["squeeze"])
    for more in ({}, {"places": [7, *described["places"][1:]]} if "places" in change else {}):
        path.write_bytes(file.described("squeeze", {**described, **change, **more}).to_bytes())
        with pytest.raises(FormatError, match=r"is damaged|is unknown|differs"):
            squeeze.unpack(path, "back")
        assert not Path("back").exists()


def test_a_damaged_payload_is_found(state):
    squeeze.pack(state, "packed")
    data = bytearray(Path("packed").read_bytes())
    data[len(data) // 2] ^= 1
    Path("packed").write_bytes(data)
    assert fails("verify", "packed").startswith("Error: packed: tensor 'state.")
    with pytest.raises(DamagedError):
        squeeze.unpack("packed", "back")


def test_mutated_descriptions_never_restore_other_bytes(state):
    squeeze.pack(state, "packed")
    file, expected = tensorfiles.parsed(Path("packed").read_bytes()), state.read_bytes()
    described = json.loads(file.header["__metadata__"]["squeeze"])
    for seed in range(60):
        changed = file.described("squeeze", mutations.mutated(described, random.Random(seed)))
        Path("hurt").write_bytes(changed.to_bytes())
        try:
            squeeze.unpack("hurt", "back", overwrite=True)
        except SqueezeError as error:
            assert str(error).isprintable()
            continue
        assert Path("back").read_bytes() == expected


def test_pickles_from_anywhere_are_read_or_refused(state):
    with zipfile.ZipFile(state) as archive:
        whole = archive.read("optimizer/data.pkl")
    deep = b"\x80\x02)" + b"\x85" * 20_000 + b"."
    wide = b"\x80\x02(" + b"K\x01" * 1000 + b"tq\x00" + b"(h\x00h\x00tq\x00" * 40 + b"."
    number = b"\x80\x02}\x8b" + (4000).to_bytes(4, "little") + b"\x7f" * 4000 + b"K\x01s."
    for data in (deep, wide, number):
        storages(pickled.read(io.BytesIO(data), set()))
    generator = random.Random(0)
    for _ in range(300):
        hurt = bytearray(whole)
        for _ in range(generator.randrange(1, 4)):
            hurt[generator.randrange(len(hurt))] = generator.randrange(256)
        with contextlib.suppress(FormatError):
            storages(pickled.read(io.BytesIO(bytes(hurt)), set()))


def memoized(text: str) -> bytes:
    """Return the opcodes that put a text into the memo, at 0."""
    return b"X" + len(text).to_bytes(4, "little") + text.encode() + b"q\0000"


LONG = memoized("a" * 20_000)
AMPLIFIED = {
    "a long key, often": LONG + b"}K\1}(" + b"h\0)" * 2000 + b"us",
    "many arguments, often": b"(" + b"N" * 5000 + b"tq\0000(" + b"Nh\0R" * 2000 + b"l",
    "a long name, often": LONG + b"(" + b"h\0h\0\x93" * 2000 + b"l",
}


@pytest.mark.parametrize("name", AMPLIFIED)
def test_reading_an_amplified_pickle_takes_little_memory(name):
    tracemalloc.start()
    with contextlib.suppress(FormatError):
        storages(pickled.read(io.BytesIO(b"\x80\x02" + AMPLIFIED[name] + b"."), set()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_shape_of_long_numbers_is_not_multiplied(monkeypatch):
    def refused(_):
        raise AssertionError

    monkeypatch.setattr(torch_storages, "prod", refused)
    kept = pickled.Persistent(("storage", pickled.Name("torch.FloatStorage"), "0", "cpu", 8))
    tree = pickled.Node(pickled.Name("torch._utils._rebuild_tensor_v2"), (kept, 0, (1 << 8000,) * 64, ()))
    assert storages(tree)["0"].shape == (8,)


def test_pickles_respect_the_limit_of_memory(state, monkeypatch):
    """They are plain bytes; but a base, whose tensors are to be known, is refused."""
    Path("model").mkdir()
    state.rename("model/optimizer.pt")
    monkeypatch.setattr(pickled, "_STEP_MEMORY", 1 << 50)
    limits = Limits(memory=1 << 30)
    with pytest.raises(LimitError, match=r"^its pickle needs [\d,]+ bytes of memory, and the limit is 1,073,741,824: "):
        torch_file.read(Path("model/optimizer.pt"), limits)
    assert squeeze.pack("model/optimizer.pt", "alone").notes[0].endswith("it is packed as plain bytes")
    assert training_run.why_incomplete(Path("model")) == ""
    comes_back("model")
    assert same("packed/optimizer.pt", "model/optimizer.pt")
    with pytest.raises(LimitError, match=r"^model/optimizer.pt: its pickle needs "):
        squeeze.pack("model", "delta", base="model")


def test_a_zip_with_a_wrong_directory_is_not_a_torch_file():
    with zipfile.ZipFile("odd.pt", "w") as made:
        made.writestr("odd/data.pkl", pickle.dumps(1))
    data = bytearray(Path("odd.pt").read_bytes())
    data[-6:-2] = (1_000_000).to_bytes(4, "little")  # where the directory would begin
    Path("odd.pt").write_bytes(data)
    with pytest.raises(TruncatedError, match=r"^not a whole file of torch.save$"):
        torch_file.read(Path("odd.pt"))
    model_folder("model")
    Path("odd.pt").rename("model/odd.pt")
    comes_back("model")
