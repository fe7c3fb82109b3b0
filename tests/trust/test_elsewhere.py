"""A URL, an absolute path and paths upwards in the place of every string of every format, and all commands on them: no
request is made, and nothing outside is opened, changed or deleted."""

import shutil
import warnings
import zlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from squeeze.errors import SqueezeError
from tests.makers.command import call
from tests.trust import kept, samples, watch

TEXT = b"a text of some words, again and again. " * 20


class Box:
    """A folder to work in, in which `../outside` and a URL are what no command was told of."""

    def __init__(self, here: Path, monkeypatch: pytest.MonkeyPatch, seen: watch.Watch):
        self.here, self.seen, self.patch, self.faults = here, seen, monkeypatch, list[str]()
        server, outside = seen.server, seen.outside
        self.hostile = (
            *(f"{server}/a.sqz", f"simplecache::{server}/model", f"reference://key::{server}/refs.json"),
            *(outside, f"{outside}/a.sqz", f"file://{outside}/a.sqz", f"local://{outside}/model"),
            *("../outside", "../../outside", "../outside/a.sqz", "../../outside/a.sqz", "../outside/model"),
            *("../../outside/model/model.safetensors", "checkpoint-1/../../../outside/model", ".."),
        )

    def run(self, name: str, sample: samples.Sample, data: bytes, command: samples.Command, what: str) -> None:
        work = self.here / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        self.patch.chdir(work)
        (work / "t.txt").write_bytes(TEXT)
        sample.files(work)
        (work / sample.path).write_bytes(data)
        before = _content(Path(self.seen.outside))
        with self.seen.looking() as news, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            error = _outcome(command)
        found = [*news, *([] if error is None else [error])]
        if _content(Path(self.seen.outside)) != before:
            found.append("what lies outside has changed")
            pytest.fail(f"{name}, {what}, {command}: {found}")
        said = command if isinstance(command, tuple) else "a call"
        self.faults += [f"{name}, {what}, {said}: {one}" for one in found]


def _outcome(command: samples.Command) -> str | None:
    """Return what a command printed apart from one line of squeeze's own."""
    if isinstance(command, tuple):
        error = call(*command).exception
        return None if error is None or isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"[:200]
    try:
        command()
    except SqueezeError:
        return None
    except Exception as error:  # of a library that was called by itself
        return None if isinstance(error, (OSError, ValueError, RuntimeError, KeyError, TypeError)) else repr(error)
    return None


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: dict[str, samples.Sample]) -> Iterator[Box]:
    outside = tmp_path / "outside"
    made["config.json"].files(outside)
    (outside / "a.sqz").write_bytes(TEXT)
    (outside / "refs.json").write_text('{"version": 1, "refs": {"key": "x"}}')
    with watch.served(outside) as seen:
        yield Box(tmp_path, monkeypatch, seen)


def test_the_watch_sees_what_it_is_for(box):
    from urllib.request import urlopen

    with box.seen.looking() as news:
        Path(box.seen.outside, "a.sqz").read_bytes()
        list(Path(box.seen.outside).iterdir())
        urlopen(f"{box.seen.server}/a.sqz").close()
    kinds = [line.split()[0] for line in news]
    assert kinds[:2] == ["open", "os.listdir"] or kinds[:2] == ["open", "os.scandir"]
    assert "socket.connect" in kinds and kinds[-1] == "request"


FEW = 6  # cases of a format that `make test` runs


def test_all_formats_are_named(made):
    assert sorted(made) == sorted(kept.NAMES)


@pytest.mark.parametrize("name", kept.NAMES)
def test_nothing_elsewhere_is_touched(name, made, box):
    """Every string once, with another text and command each time; of many strings some."""
    sample = made[name]
    cases = list(sample.cases())
    assert cases
    step = max(len(cases) // FEW, 1)
    for number, (place, changed) in enumerate(cases[::step]):
        turn = zlib.crc32(place.encode()) + number
        text = box.hostile[turn % len(box.hostile)]
        command = sample.commands[turn // 7 % len(sample.commands)]
        box.run(name, sample, sample.to_bytes(changed(text)), command, f"{place} = {text}")
    assert box.faults == []


KNOWN = {  # the places that were believed once, with the command that did so
    "config.json, packed": ("quantization_config.base_folder", 0),
    "config.json, delta": ("quantization_config.base_folder", 2),
    "config.json, guarded": ("quantization_config.base.name", 0),
    "manifest": ("1.output", 0),
    "manifest of shards": ("1.output", 0),
    "journal": ("packed.0", 0),
    "recipe": ("calibration", 0),
    "config.json": ("transformers_weights", 0),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_was_believed_once(name, made, box):
    sample, (wanted, number) = made[name], KNOWN[name]
    changed = next(change for place, change in list(sample.cases())[::-1] if place == wanted)
    for text in box.hostile[:: 1 if name in ("journal", "manifest") else 4]:
        box.run(name, sample, sample.to_bytes(changed(text)), sample.commands[number], f"{wanted} = {text}")
    assert box.faults == []


@pytest.mark.parametrize("start", ["checkpoint-{}/../..", "/proc/{}/../.."])
def test_retention_goes_by_two_names_of_one_kind(start, made, box):
    """Write a packed training run whose first checkpoint is deleted."""
    sample, outside = made["journal"], Path(box.seen.outside)
    end = "/../outside/model" if start.startswith("c") else str(outside / "model")
    journal = {"format": 1, "packed": [start.format(number) + end for number in (1, 2)]}
    for command in sample.commands:
        box.run("journal", sample, sample.to_bytes(journal), command, f"two names below {start}")
    assert box.faults == []


@pytest.mark.slow
@pytest.mark.parametrize("name", kept.NAMES)
def test_all_commands_on_all_strings(name, made, box):
    sample = made[name]
    pairs = product(sample.cases(), sample.commands)
    for number, ((place, changed), command) in enumerate(pairs):
        text = box.hostile[(number + number // len(sample.commands)) % len(box.hostile)]
        box.run(name, sample, sample.to_bytes(changed(text)), command, f"{place} = {text}")
    assert box.faults == []
