"""The journal of a followed run: what it says was packed before, and what a run deletes because of it."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import squeeze
from squeeze.packing.follow import LEFT, Follow
from squeeze.packing.training_run import NAME
from tests.fuzz import mutations
from tests.fuzz.judging import SAME, TRUE, Wrong, one_of
from tests.makers.checkpoints import write

_SAMPLE = {"format": 1, "packed": ["checkpoint-1", "checkpoint-2"]}
_NAMES = (
    *(
        "../victim",
        "..",
        ".",
        "",
        "checkpoint-1/../../victim",
        "/tmp",
        "victim-1",
        ".hidden-1",
        "checkpoint-1/.",
        "a\0",
    ),
    *("http://host/x", "C:x", "checkpoint-1", "checkpoint-3", "notes-1", "notes-2", "link-1", "link-2", None, 7, []),
)


_MINE = 9  # files, folders and links that are the user's


@dataclass(frozen=True)
class Case:
    data: bytes
    removes: bool


class Journal:
    """Two checkpoints, packed, a third that is not, and what a journal might name beside them."""

    seconds = 0.05

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        (folder / "out").mkdir()
        for step in (1, 2, 3):
            source = folder / "run" / f"checkpoint-{step}"
            source.mkdir(parents=True)
            write(source / "model.safetensors", {"w": ("BF16", (32, 32), bytes([step]) * 2048)})
            if step < 3:
                squeeze.pack(source, folder / "out" / source.name)
        for number in (1, 2):
            (folder / "out" / f"victim-{number}").mkdir()
            (folder / "out" / f"victim-{number}" / "precious").write_text("mine")
            (folder / "out" / f"notes-{number}").write_text("mine")
            (folder / "out" / f".hidden-{number}").mkdir()
        (folder / "victim").mkdir()
        (folder / "victim" / "precious").write_text("mine")
        (box := folder / "first").mkdir()
        self.read(Case(json.dumps(_SAMPLE).encode(), False), box)

    def mutate(self, random: Random) -> Case:
        data = one_of(
            random,
            (1, lambda r: mutations.damaged(json.dumps(_SAMPLE).encode(), r)),
            (3, lambda r: _json(mutations.mutated(_SAMPLE, r))),
            (4, lambda r: _json({"format": 1, "packed": r.choices(_NAMES, k=r.choice((1, 2, 3)))})),
        )
        return Case(data, random.random() < 0.3)

    def read(self, case: Case, folder: Path) -> str:
        for name in ("run", "out", "victim"):
            shutil.copytree(self.folder / name, folder / name)
        for number in (1, 2):
            (folder / "out" / f"link-{number}").symlink_to(folder / "victim")
        (folder / "out" / NAME).write_bytes(case.data)
        options: dict[str, Any] = {"interval": 0.0, "until_idle": 0.0, "keep": 1, "remove_source": case.removes}
        try:
            events = list(Follow(source=folder / "run", target=folder / "out", verify=False, **options).run())
        finally:
            mine = [path for place in ("victim", "out") for path in (folder / place).rglob("*") if _is_mine(path)]
            if len(mine) != _MINE:
                raise Wrong(f"{len(mine)} of what is the user's are left")
            if not (folder / "run" / "checkpoint-3").is_dir():
                raise Wrong("the last checkpoint is gone")
        if any(event.kind == LEFT for event in events):
            return TRUE
        return SAME if case.data == json.dumps(_SAMPLE).encode() else TRUE


def _is_mine(path: Path) -> bool:
    return path.name in ("precious", "notes-1", "notes-2", ".hidden-1", ".hidden-2", "link-1", "link-2")


def _json(value: Any) -> bytes:
    return mutations.to_json(value).encode("utf-8", "surrogatepass")


FORMAT = Journal
