"""Stores of models: their lists of files and their objects, with names, hashes and checksums made right or not.

What a store gives back must have the SHA-256 that the model's list names, and every object the hash in its name if
`verify` says so. Nothing outside the store and the target is written or deleted.
"""

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import xxhash
from safetensors.torch import save

from squeeze.errors import SqueezeError
from squeeze.packing.codings import CODINGS
from squeeze.packing.record import Record
from squeeze.packing.store import Store as Kept
from squeeze.packing.store.load import load
from squeeze.packing.store.objects import key_of
from tests.fuzz import mutations
from tests.fuzz.formats.packed import _read, bytes_of
from tests.fuzz.judging import LIMITS, SAME, TRUE, Wrong, one_of

Files = dict[str, bytes]
_START = struct.Struct("<4sI")
_WAYS = ("get", "get", "get", "verify", "list", "gc", "add", "load", "remove")
_NAMES = ("../m0", "/tmp/x", "..", "", "\0", "m9", "http://host/x", "a/b", "m0")
_PRECIOUS = "precious"


@dataclass(frozen=True)
class Case:
    files: Files  # of the store
    model: str
    way: str


class Store:
    """A store of a model, of one with some changes, and of a single file."""

    seconds = 0.03

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        kept = Kept(folder / "store")
        self.originals: dict[str, Files] = {}
        for number, share in enumerate((0.0, 0.01)):
            source = _model(folder / f"m{number}", share)
            kept.add(source, level=("runtime", "archive")[number])
            self.originals[source.name] = _read(source)
        kept.add(folder / "m1" / "model.safetensors", "alone")
        self.originals["alone"] = {"": (folder / "m1" / "model.safetensors").read_bytes()}
        self.files = _read(folder / "store")
        self.objects = [name for name in self.files if name.startswith("objects/")]
        for model in self.originals:
            for way in sorted(set(_WAYS)):
                (box := folder / f"{model}.{way}").mkdir()
                if self.read(Case(self.files, model, way), box) != SAME:
                    raise Wrong(f"{way}: a store gives other files")

    def mutate(self, random: Random) -> Case:
        files, model = dict(self.files), random.choice(list(self.originals))
        for _ in range(random.choice((1, 1, 1, 2))):
            one_of(
                random,
                (3, lambda r: _listed(files, model, r)),
                (2, lambda r: _damaged(files, r)),
                (6, lambda r: self._object(files, r)),
                (1, lambda r: self._moved(files, r)),
            )
        return Case(files, model, random.choice(_WAYS))

    def _object(self, files: Files, random: Random) -> None:
        """Change the header or the payload of an object, and make its checksum and its name right if that can be."""
        name = random.choice([name for name in self.objects if name in files] or self.objects)
        header, payload = _taken_apart(files.get(name) or self.files[name])
        change = random.random()
        if change < 0.3:
            header = mutations.mutated(header, random)
        elif change < 0.5:
            header |= {"base": random.choice([*map(_key_in, self.objects), None]), "chain": random.randrange(10)}
        elif change < 0.6:
            header["coding"] = random.choice(tuple(CODINGS))
        else:
            head = random.randrange(1, 60) if random.random() < 0.5 else len(payload)
            payload = mutations.damaged(payload[:head], random) + payload[head:]
            header = self._righted(header, payload)
        files[name] = _put_together(header, payload, random)

    def _righted(self, header: dict[str, Any], payload: bytes) -> dict[str, Any]:
        """Return the header with the checksum of what a payload decodes to, if it does."""
        base = None
        try:
            if header["base"]:
                known, coded = _taken_apart(self.files[_place_of(header["base"])])
                base = _decoded(known, coded, None)
            data = _decoded(header, payload, base)
        except (SqueezeError, KeyError, TypeError, ValueError):  # damaged before
            return header
        return header | {"checksum": xxhash.xxh3_64_intdigest(data.tobytes())}

    def _moved(self, files: Files, random: Random) -> None:
        """Exchange or remove a file of the store."""
        one, other = random.choice(list(files)), random.choice(list(files))
        match random.randrange(3):
            case 0:
                del files[one]
            case 1:
                files[one], files[other] = files[other], files[one]
            case _:
                files[one] = files[other]

    def read(self, case: Case, folder: Path) -> str:
        root = folder / "store"
        for name, data in case.files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        for name in ("objects", "models", "temporary"):
            (root / name).mkdir(parents=True, exist_ok=True)
        (folder / _PRECIOUS).write_text("mine")
        kept = Kept(root, LIMITS)
        target = folder / "out"
        try:
            found = self._through(case, kept, target, folder)
        except SqueezeError:
            if target.exists() and case.way == "get":
                raise Wrong("get: a refused model leaves a target") from None
            raise
        finally:
            if not (folder / _PRECIOUS).is_file():
                raise Wrong(f"{case.way}: a file outside the store is gone")
            strays = {path.name for path in folder.iterdir()} - {"store", "out", "in", "cache", _PRECIOUS}
            if strays:
                raise Wrong(f"{case.way}: leaves {sorted(strays)}")
        return found

    def _through(self, case: Case, kept: Kept, target: Path, folder: Path) -> str:
        original = self.originals[case.model]
        match case.way:
            case "get":
                kept.get(case.model, target)
                found = _read(target)
                if found == original:
                    return SAME
                described = json.loads(case.files[f"models/{case.model}"])["files"]
                wanted = {name: one["sha256"] for name, one in described.items()}
                if {name: hashlib.sha256(data).hexdigest() for name, data in found.items()} != wanted:
                    raise Wrong("get: other bytes than the hashes say")
            case "load":
                loaded = load(kept, case.model)
                entries = {
                    entry.name: entry for file in kept.model(case.model).files.values() for entry in file.tensors
                }
                for name in loaded:
                    checksum = kept.objects.header(entries[name].key).record.checksum
                    if xxhash.xxh3_64_intdigest(bytes_of(loaded[name])) != checksum:
                        raise Wrong("load: other values than the checksum says")
            case "verify":
                kept.verify()
                if any(key_of(kept.objects.read(key)) != key for name in kept.names() for key in kept.model(name).keys):
                    raise Wrong("verify: an object is not what its name says")
            case "list":
                kept.list()
                kept.size()
            case "gc":
                before = _read(kept.path)
                kept.gc()
                if gone := [name for name in before if not (kept.path / name).exists() and _is_needed(name)]:
                    raise Wrong(f"gc: deleted {gone[0]}")
            case "remove":
                kept.remove(case.model)
            case _:
                kept.add(_model(folder / "in", 0.02), "m9")
                kept.get("m9", target)
                if _read(target) != _read(folder / "in"):
                    raise Wrong("add: a model comes back with other bytes")
        return SAME if case.files == self.files else TRUE


def _is_needed(name: str) -> bool:
    return name.startswith("models/") or name in ("store.json", "lock")


def _model(folder: Path, share: float) -> Path:
    """Write a folder of a model of which a share of the values differs from those of the first one."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(1)
    tensors = {name: torch.randn((40, 60), generator=generator).bfloat16() for name in ("a", "b")}
    words = tensors["a"].view(torch.int16)
    words += (torch.rand(words.shape, generator=generator) < share).short()
    (folder / "model.safetensors").write_bytes(save(tensors | {"one": torch.ones(())}))
    (folder / "config.json").write_bytes(b'{"model_type": "llama"}')
    return folder


def _listed(files: Files, model: str, random: Random) -> None:
    """Change a model's list of files."""
    name = f"models/{model}"
    if name not in files:
        return
    try:
        described = json.loads(files[name])
    except (ValueError, RecursionError):
        return
    if random.random() < 0.3 and isinstance(described, dict) and isinstance(described.get("files"), dict):
        entries = list(described["files"].items())
        at = random.randrange(len(entries)) if entries else 0
        entries[at : at + 1] = [(random.choice(_NAMES), value) for _, value in entries[at : at + 1]]
        described["files"] = dict(entries)
    else:
        described = mutations.mutated(described, random)
    files[name] = mutations.to_json(described).encode("utf-8", "surrogatepass")


def _damaged(files: Files, random: Random) -> None:
    name = random.choice(list(files))
    files[name] = mutations.damaged(files[name], random)


def _key_in(name: str) -> str:
    return name.removeprefix("objects/").replace("/", "")


def _place_of(key: str) -> str:
    return f"objects/{key[:2]}/{key[2:]}"


def _taken_apart(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the payload of an object; those of none if it is damaged."""
    _, length = _START.unpack(data[: _START.size].ljust(_START.size, b"\0"))
    try:
        header = json.loads(data[_START.size : _START.size + length])
    except (ValueError, RecursionError):
        header = None
    fallback = {"dtype": "U8", "shape": [0], "coding": "stored", "size": 0, "checksum": 0, "base": None, "chain": 0}
    return header if isinstance(header, dict) else fallback, data[_START.size + length :]


def _put_together(header: Any, payload: bytes, random: Random) -> bytes:
    text = mutations.to_json(header, separators=(",", ":")).encode("utf-8", "surrogatepass")
    text = text.ljust(-(-len(text) // 8) * 8)
    length = mutations.size(random, len(text)) % 2**32 if random.random() < 0.05 else len(text)
    return _START.pack(b"SQZO", length) + text + payload


def _decoded(header: dict[str, Any], payload: bytes, base: Any) -> Any:
    record = Record(header["dtype"], tuple(header["shape"]), CODINGS[header["coding"]], 0)
    return record.decode(np.frombuffer(payload, np.uint8).copy(), base, 1)


FORMAT = Store
