"""The index of a shard: where each file of its tar lies."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import squeeze
from squeeze.codecs.stream.members import index_name, read_members
from squeeze.errors import FormatError
from squeeze.system.storage import relative
from tests.fuzz import mutations
from tests.fuzz.judging import LIMITS, SAME, TRUE, Wrong, one_of
from tests.fuzz.streams import compile_levels
from tests.makers.command import run

_BOMBS = (b"[" + b"[]," * 40_000 + b"[]]", b"[" * 100_000, b'["' + b"a" * 100_000 + b'",0,1,"0"]', b"{}" * 9, b"")


@dataclass(frozen=True)
class Case:
    data: bytes


class Members:
    """A shard of three files and its index, which is a .sqz file of lines of JSON."""

    seconds = 0.01

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        compile_levels()
        (tree := folder / "tree").mkdir()
        for number in range(3):
            (tree / f"{number}.txt").write_bytes(b"%d words " % number * 30)
        run("compress", "-q", "-r", "-1", "--shards", "1M", tree, "-o", folder / "part-{}.tar.sqz")
        self.shard = folder / "part-0.tar.sqz"
        self.sample = index_name(self.shard).read_bytes()
        self.lines = [json.loads(line) for line in squeeze.decompress(self.sample).splitlines()]
        self.known = read_members(self.shard)
        self.read(Case(self.sample), folder / "first")

    def mutate(self, random: Random) -> Case:
        data = one_of(
            random,
            (2, lambda r: mutations.damaged(self.sample, r)),
            (6, lambda r: _coded(map(_line, mutations.mutated(self.lines, r)))),
            (2, lambda r: _coded([mutations.damaged(b"\n".join(map(_line, self.lines)), r)])),
            (1, lambda r: _coded([_line(self.lines[0]), r.choice(_BOMBS), *map(_line, self.lines[1:])])),
        )
        return Case(data)

    def read(self, case: Case, folder: Path) -> str:
        folder.mkdir(exist_ok=True)
        shard = folder / self.shard.name
        shutil.copyfile(self.shard, shard)
        index_name(shard).write_bytes(case.data)
        found = read_members(shard, LIMITS)
        if found == self.known:
            return SAME
        assert found
        for name, member in found.by_name.items():
            if member.name != relative(name) or not 0 <= member.offset <= member.offset + member.size <= found.size:
                raise Wrong("members: one that lies outside")
        with squeeze.open(shard, limits=LIMITS) as file:
            for member in list(file.members().values())[:3]:
                with file.member(member.name) as content:
                    if len(content.read()) != member.size:
                        raise FormatError("a member of another length")
        return TRUE


def _line(value: Any) -> bytes:
    return mutations.to_json(value, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _coded(lines: Any) -> bytes:
    return squeeze.compress(b"".join(line + b"\n" for line in lines), 1)


FORMAT = Members
