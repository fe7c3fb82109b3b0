"""The manifest of a run over many files, or into shards: lines of JSON, of which the last may be cut off."""

import shutil
from contextlib import chdir, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from squeeze.cluster.manifest import Manifest as Notes, read_manifest, read_options, read_records
from squeeze.cluster.operations import COMPRESS
from squeeze.cluster.shards import SHARDS, Noted
from squeeze.codecs.shards.plan import Template
from squeeze.errors import FormatError
from tests.fuzz import mutations
from tests.fuzz.judging import LIMITS, SAME, TRUE, Wrong, one_of
from tests.fuzz.streams import compile_levels
from tests.makers.command import call, run

_HEAD = {"manifest": 1, "session": "0a0b0c0d", "operation": COMPRESS, "options": {"level": "1"}, "sources": ["tree"]}
_LONG = (b"[" * 100_000, b'{"source":' * 400, b"9" * 5_000, b"{" + b'"a":[],' * 100_000 + b'"b":1}', b"\xff\n", b"")


@dataclass(frozen=True)
class Case:
    data: bytes
    sharded: bool
    way: str


class Manifest:
    """Manifests of both kinds; a file of each that they name lies where they say."""

    seconds = 0.02

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        compile_levels()
        self.tree = folder / "tree"
        self.tree.mkdir()
        (self.tree / "a.txt").write_bytes(b"some words " * 40)
        run("compress", "-q", "-r", "-1", "--shards", "1M", self.tree, "-o", folder / "part-{}.tar.sqz")
        run("compress", "-q", "-k", "-1", self.tree / "a.txt")
        record = {"source": "tree/a.txt", "size": 440, "stamp": "x", "output": "tree/a.txt.sqz", "output_size": 9}
        record |= {"checksum": "00", "attempts": 1, "error": "", "version": ""}
        shard = record | {"output": "part-0.tar.sqz"}
        head = _HEAD | {"operation": SHARDS, "options": {"root": "tree"}}
        end = {"complete": True, "files": 1}
        self.samples: tuple[list[Any], list[Any]] = (
            [_HEAD, record, end, _HEAD | {"session": "11111111"}, record, end],
            [head, shard, shard | {"source": "part-0.tar.sqz"}, end],
        )
        self.folder = folder
        for sharded in (False, True):
            for way in ("read", "go on", "test"):
                (box := folder / f"{way}.{sharded}").mkdir()
                with suppress(FormatError):  # of `test`: the checksums are made up
                    self.read(Case(_lines(self.samples[sharded]), sharded, way), box)

    def mutate(self, random: Random) -> Case:
        sharded = random.random() < 0.4
        sample = self.samples[sharded]
        data = one_of(
            random,
            (2, lambda r: mutations.damaged(_lines(sample), r)),
            (6, lambda r: _lines(mutations.mutated(sample, r))),
            (1, lambda r: _lines(sample[:1]) + r.choice(_LONG) + b"\n" * r.randrange(2) + _lines(sample[1:])),
        )
        return Case(data, sharded, random.choice(("read", "go on", "test")))

    def read(self, case: Case, folder: Path) -> str:
        shutil.copytree(self.tree, folder / "tree")
        for path in self.folder.glob("part-*"):
            shutil.copyfile(path, folder / path.name)
        with chdir(folder):  # which names in manifests are relative to
            return self._read(case)

    def _read(self, case: Case) -> str:
        path = Path("manifest.jsonl" if case.sharded else "tree/manifest.jsonl")
        path.write_bytes(case.data)
        if case.way == "read":
            told = read_manifest(path, LIMITS)
            done = sum(not one.error for one in told.records)
            if not isinstance(told.done, int) or told.done > done + len(list(read_records(path))):
                raise Wrong("read: more is done than is told")
            read_options(path)
        elif case.way == "go on":
            options = {"root": "tree"} if case.sharded else {"level": "1"}
            notes = Notes(path, SHARDS if case.sharded else COMPRESS, options, () if case.sharded else ["tree"])
            notes.begin()
            notes.close()
            Noted(path, Template(Path("part-{}.tar.sqz")))
            read_manifest(path, LIMITS)
        else:
            result = call("test", "-q", "--memlimit", "256M", "--manifest", path)
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception
            if result.exit_code:
                raise FormatError(result.stderr.splitlines()[0])
        return SAME if case.data == _lines(self.samples[case.sharded]) else TRUE


def _lines(values: Any) -> bytes:
    if not isinstance(values, list):
        values = [values]
    return b"".join(mutations.to_json(value).encode("utf-8", "surrogatepass") + b"\n" for value in values)


FORMAT = Manifest
