"""Every call that changes the disk fails once, and from every one on the disk is full: nothing is lost or half there.

After a fault the source is what it was, the target is not there or what it was, no temporary file is left, and one
line says what happened. It names the hidden folder of what is done, if one is left. The same command then does what it
should. Where only what was replaced could not be deleted, or made to last, the target is there, and the line says so.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from squeeze.commands.echo import EXPECTED_ERRORS, explain
from squeeze.kv import KIVI, QuantizedKVCache
from squeeze.kv.contract import CACHE
from tests.faults.disk import Disk, broken_at, full_from
from tests.makers import networks, tiny_models
from tests.makers.command import TEXT, call
from tests.makers.kv_models import llama, tokens

_OF_THE_RUN = ("compression_report.json", "README.md")  # have a time in them


def command(*words: str) -> tuple[int, str]:
    done = call(*words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stderr


def contents(folder: Path = Path()) -> dict[str, bytes]:
    """Return the content of a folder by name; folders end in a slash."""
    found = {f"{path.relative_to(folder)}/": b"" for path in folder.rglob("*") if path.is_dir()}
    return found | {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in _OF_THE_RUN
    }


@dataclass(frozen=True)
class Case:
    """prepare makes sources in the current folder; run does the work; again does it where the target is there.

    work: a folder that may stay after a fault, for the next run to go on with.
    """

    prepare: Callable[[], object]
    run: Callable[[], tuple[int, str]]
    again: Callable[[], tuple[int, str]]
    target: str
    work: str = "none"

    def of_target(self, files: dict[str, bytes]) -> dict[str, bytes]:
        return {name: data for name, data in files.items() if name.rstrip("/").split("/")[0] == self.target}

    def without_work(self, files: dict[str, bytes]) -> dict[str, bytes]:
        return {name: data for name, data in files.items() if name.split("/")[0] != self.work}


def of_command(prepare: Callable[[], object], target: str, *words: str, work: str = "none") -> Case:
    again = words if "-f" in words else (*words, "-f")
    return Case(prepare, partial(command, *words), partial(command, *again), target, work)


def text() -> None:
    Path("note.txt").write_bytes(TEXT)


def text_and_old() -> None:
    text()
    Path("note.txt.sqz").write_bytes(b"old")


def coded() -> None:
    text()
    assert command("compress", "-1", "--rm", "note.txt")[0] == 0


def model() -> None:
    """Write a folder of two shards and the files that they hold."""
    Path("model/more").mkdir(parents=True)
    random = np.random.default_rng(1)
    for name in ("a", "more/b"):
        tensors = {f"{name}.{i}": random.standard_normal((8, 64)).astype(np.float32) for i in range(2)}
        save_file(tensors, Path("model", f"{name}.safetensors"))
    Path("model/config.json").write_text('{"model_type": "llama"}')


def model_and_old() -> None:
    model()
    Path("packed").mkdir()
    Path("packed/old").write_text("old")


def packed() -> None:
    model()
    assert command("pack", "model", "packed")[0] == 0
    shutil.rmtree("model")


def network() -> None:
    networks.save("llama", Path("model"))


def gguf() -> None:
    tiny_models.write_gguf(Path("a.gguf"), tiny_models.byte_level())


def quantised() -> None:
    network()
    command("quantize", "model", "q", "-q", "-T", "1", *ROUNDED)
    shutil.rmtree("model")


def one_file() -> None:
    model()
    Path("model/a.safetensors").rename("a.safetensors")
    shutil.rmtree("model")


def save_cache() -> tuple[int, str]:
    model = llama()
    cache = QuantizedKVCache(model.config, KIVI(4, group=16, window=16))
    with torch.no_grad():
        model(tokens(1, 40), **{CACHE: cache})
    try:
        cache.save("a.kv")
    except EXPECTED_ERRORS as error:
        return 1, f"Error: {explain(error)}\n"
    return 0, ""


QUANTIZE = ("quantize", "model", "q", "--resume", "--format", "squeeze", "-q", "-T", "1")
ROUNDED = ("--method", "rtn", "--bits", "4")
CALIBRATED = ("--samples", "2", "--sequence-length", "8", "--group-size", "32")
CASES = {
    "compress": of_command(text, "note.txt.sqz", "compress", "-1", "note.txt"),
    "compress --rm": of_command(text, "note.txt.sqz", "compress", "-1", "--rm", "note.txt"),
    "compress -f": of_command(text_and_old, "note.txt.sqz", "compress", "-1", "-f", "--rm", "note.txt"),
    "decompress": of_command(coded, "note.txt", "decompress", "note.txt.sqz"),
    "decompress --rm": of_command(coded, "note.txt", "decompress", "--rm", "note.txt.sqz"),
    "pack": of_command(model, "packed", "pack", "-T", "1", "model", "packed", work=".packed.packing"),
    "pack -f": of_command(model_and_old, "packed", "pack", "-T", "1", "-f", "model", "packed", work=".packed.packing"),
    "pack a file": of_command(one_file, "b", "pack", "-T", "1", "a.safetensors", "b", work=".b.packing"),
    "unpack": of_command(packed, "model", "unpack", "-T", "1", "packed", "model"),
    "import": of_command(gguf, "model", "import", "-q", "a.gguf", "model"),
    "densify": of_command(quantised, "dense", "densify", "-q", "q", "dense"),
    "kv save": Case(lambda: None, save_cache, save_cache, "a.kv"),
    "quantize": of_command(network, "q", *QUANTIZE, *ROUNDED, work=".q.compressing"),
    "quantize calibrated": of_command(network, "q", *QUANTIZE, *CALIBRATED, work=".q.compressing"),
}
SLOW = ("import", "densify", "quantize", "quantize calibrated")


def sweep(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strike: Callable, numbers: Iterable[int]) -> int:
    """Strike at each of the numbers until a run has fewer calls; how many faults there were."""
    for name in ("whole", "fresh"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        case.prepare()
    before = contents()
    monkeypatch.chdir(tmp_path / "whole")
    assert case.run() == (0, "")
    after = contents()
    for faults, number in enumerate(numbers):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "fresh", folder)
        monkeypatch.chdir(folder)
        disk = Disk(folder, strike(number))
        with disk.installed():
            code, said = case.run()
        if not disk.struck:
            assert (code, said, contents()) == (0, "", after)
            return faults
        check(case, f"{disk.struck}: {said}", code, said, before, after)
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(folder)
    raise AssertionError("every run met its fault")


def check(case: Case, what: str, code: int, said: str, before: dict, after: dict) -> None:
    """Check that nothing was lost after a fault and that the next run succeeds."""
    found = contents()
    there = case.of_target(found) == case.of_target(after)
    if code == 0:  # it went another way
        assert found == after, what
        return
    assert code == 1 and said.startswith("Error: ") and said.count("\n") == 1, what
    if "was written nevertheless" in said:
        assert there, what
    else:
        assert not {name for name in case.without_work(found) if ".tmp" in name or ".old" in name}, what
        if there and case.target not in {name.split("/")[0] for name in before}:
            raise AssertionError(f"the target is there: {what}")
        if not there:
            assert case.without_work(found) == before, what
    known = {name.split("/")[0] for name in {**before, **after}}
    assert all(name in said for name in {name.split("/")[0] for name in found} - known), what
    assert {name: found.get(name) for name in before if name not in case.of_target(before)} == {
        name: data for name, data in before.items() if name not in case.of_target(before)
    }, what
    again = case.again if there else case.run
    assert again() == (0, ""), what
    left = {name for name in found if ".old" in name or ".tmp" in name}
    assert {name: data for name, data in contents().items() if name not in left} == after, what


@pytest.mark.parametrize("strike", [broken_at, full_from])
@pytest.mark.parametrize("name", [name for name in CASES if name not in SLOW])
def test_nothing_is_lost_if_every_third_call_fails(name, strike, tmp_path, monkeypatch):
    assert sweep(CASES[name], tmp_path, monkeypatch, strike, count(1, 3)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("strike", [broken_at, full_from])
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_lost_if_any_call_fails(name, strike, tmp_path, monkeypatch):
    assert sweep(CASES[name], tmp_path, monkeypatch, strike, count(1)) > 1


@pytest.mark.parametrize("name", SLOW)
def test_nothing_is_lost_if_some_calls_of_long_runs_fail(name, tmp_path, monkeypatch):
    calls = [3, 11, 29, 10**6]
    assert sweep(CASES[name], tmp_path, monkeypatch, full_from, calls) == 3


def test_the_disk_sees_every_kind_of_call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    with Disk(tmp_path, lambda call, kind: seen.append(kind)).installed():
        Path("a").write_text("a")
        Path("b").write_bytes(b"b")
        shutil.copyfile("b", "c")
        Path("a").rename("d")
        Path("below").mkdir()
        shutil.rmtree("below")
        Path("b").unlink()
        handle = os.open("e", os.O_RDWR | os.O_CREAT)
        os.pwrite(handle, b"x", 0)
        os.fsync(handle)
        os.ftruncate(handle, 0)
        os.close(handle)
    assert seen == [
        *("open", "write") * 3,
        *("write", "rename", "make", "delete", "delete"),
        *("open", "write", "sync", "write"),
    ]
