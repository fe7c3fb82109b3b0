"""Packed checkpoints: files, differences and folders. What comes out must have the hashes that the file names."""

import base64
import hashlib
import json
import shutil
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import xxhash

import squeeze
from squeeze.errors import SqueezeError
from squeeze.packing import container, folder as folders
from squeeze.packing.codings import CODINGS
from squeeze.packing.record import Record
from tests.fuzz import mutations, tensorfiles
from tests.fuzz.formats import safetensors
from tests.fuzz.judging import SAME, TRUE, Wrong, one_of
from tests.fuzz.limited import limited
from tests.fuzz.tensorfiles import TensorFile

_KEY = container.KEY


@dataclass(frozen=True)
class Case:
    """files: what the packed folder, or the file of the empty name, holds; sample: which one it was."""

    files: dict[str, bytes]
    sample: int
    way: str


class Packed:
    """The samples, packed: by all levels, as differences from a base, one of them in units of the last place, and a
    folder of two shards."""

    seconds = 0.02

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.base = folder / "base.safetensors"
        self.base.write_bytes(safetensors.sample())
        changed = bytearray(self.base.read_bytes())
        changed[-40] ^= 1
        whole = {"": bytes(changed)}
        matrix = {"": _large()}
        before = folder / "before.safetensors"
        before.write_bytes(_step(0))
        self.originals = [matrix, matrix, whole, _model(), matrix | {}, matrix | {}, {"": _step(1)}]
        options: list[dict[str, Any]] = [
            *({}, {"level": "archive"}, {"base": self.base}, {}, {"verify": False}, {"level": "fast"}),
            {"base": before},
        ]
        self.options = [{"base": given["base"]} if "base" in given else {} for given in options]
        bomb(100_000_000), bomb(1 << 27)
        pairs = zip(self.originals, options, strict=True)
        self.packed = [_pack(folder / str(number), files, **given) for number, (files, given) in enumerate(pairs)]
        assert b'"ulps"' in self.packed[-1][""].replace(b"\\", b"")
        for number, files in enumerate(self.packed):
            for way in ("unpack", "verify", "load"):
                (box := folder / f"{number}.{way}").mkdir()
                self.read(Case(files, number, way), box)

    def mutate(self, random: Random) -> Case:
        number = random.randrange(len(self.packed))
        files = dict(self.packed[number])
        name = random.choice(list(files))
        if name == folders.MANIFEST and random.random() < 0.8:
            changed = mutations.mutated(json.loads(files[name]), random)
            changed = _crafted(changed, random) if isinstance(changed, dict) and random.random() < 0.3 else changed
            files[name] = mutations.to_json(changed, indent=1).encode("utf-8", "surrogatepass")
        elif name and not name.endswith(".safetensors"):
            files[name] = mutations.damaged(files[name], random)
        else:
            files[name] = self._changed(files[name], random)
        if random.random() < 0.02:
            del files[random.choice(list(files))]
        return Case(files, number, random.choice(("unpack", "unpack", "verify", "load")))

    def _changed(self, data: bytes, random: Random) -> bytes:
        other = self.packed[random.randrange(3)][""]
        return bytes(
            one_of(
                random,
                (3, lambda r: mutations.damaged(data, r)),
                (1, lambda r: mutations.spliced(data, other, r)),
                (2, lambda r: tensorfiles.mutated(tensorfiles.parsed(data), r)),
                (4, lambda r: _described(tensorfiles.parsed(data), r)),
                (3, lambda r: _recoded(tensorfiles.parsed(data), r)),
            )
        )

    def read(self, case: Case, folder: Path) -> str:
        source = _write(folder / "in", case.files)
        options = self.options[case.sample]
        if case.way == "load":
            loaded = limited(squeeze.load, source, **options)
            return self._check_loaded(case, {name: bytes_of(loaded[name]) for name in loaded})
        if case.way == "verify":
            limited(squeeze.verify, source, **options)
            return TRUE
        target = folder / ("out" if source.is_dir() else "out.safetensors")
        try:
            limited(squeeze.unpack, source, target, **options)
        except SqueezeError:
            left = sorted(path.name for path in folder.iterdir() if path != source and path.name != "cache")
            if left:
                raise Wrong(f"unpack: a refused file leaves {left}") from None
            raise
        return self._check_restored(case, _read(target))

    def _check_restored(self, case: Case, found: dict[str, bytes]) -> str:
        if found == self.originals[case.sample]:
            return SAME
        if "" in found:
            wanted = {"": json.loads(tensorfiles.parsed(case.files[""]).header["__metadata__"][_KEY])["sha256"]}
        else:
            wanted = json.loads(case.files[folders.MANIFEST])["files"]
        if {name: hashlib.sha256(data).hexdigest() for name, data in found.items()} != wanted:
            raise Wrong("unpack: other bytes than the hashes say")
        return TRUE

    def _check_loaded(self, case: Case, found: dict[str, bytes]) -> str:
        known = {}
        for name, data in self.originals[case.sample].items():
            if not name or name.endswith(".safetensors"):
                file = tensorfiles.parsed(data)
                known |= {tensor: file.payload(tensor) for tensor in file.entries()}
        if found == known:
            return SAME
        checksums = {}
        for name, data in case.files.items():
            if not name or name.endswith(".safetensors"):
                file = tensorfiles.parsed(data)
                records = json.loads(file.header["__metadata__"][_KEY])["tensors"]
                order = sorted(file.entries(), key=lambda key, file=file: file.header[key]["data_offsets"])
                checksums |= dict(zip(order, (int(record[3], 16) for record in records), strict=True))
        if any(xxhash.xxh3_64_intdigest(data) != checksums[name] for name, data in found.items()):
            raise Wrong("load: other values than the checksums say")
        return TRUE


@cache
def bomb(size: int) -> str:
    """A text that unfolds to as many spaces."""
    return base64.b64encode(zlib.compress(bytes(8) + b" " * size)).decode()


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _described(file: TensorFile, random: Random) -> bytes:
    """Another description of the same payloads."""
    described = json.loads(file.header["__metadata__"][_KEY])
    match random.randrange(5):
        case 0:
            header = zlib.decompress(base64.b64decode(described["header"]))
            harmless = base64.b64encode(zlib.compress(mutations.damaged(header, random))).decode()
            described["header"] = random.choice((harmless, harmless, bomb(100_000_000)))
        case 1:
            inner = tensorfiles.parsed(zlib.decompress(base64.b64decode(described["header"])))
            header = tensorfiles.mutated(inner, random)
            described["header"] = base64.b64encode(zlib.compress(header)).decode()
        case 2:
            record = random.choice(described["tensors"])
            record[2] = random.choice((*CODINGS, "zeros+", "delta+stored"))
        case _:
            described = mutations.mutated(described, random)
    return file.described(_KEY, described).to_bytes()


def _recoded(file: TensorFile, random: Random, reshapes: bool = True, name: str = "") -> bytes:
    """Another payload, with the checksum and the hash of what it decodes to, if it does; or another shape.

    name: a tensor whose payload was changed already.
    """
    described = json.loads(file.header["__metadata__"][_KEY])
    names = sorted(file.entries(), key=lambda key: file.header[key]["data_offsets"])
    at = names.index(name) if name else random.randrange(len(names))
    record, payload = described["tensors"][at], file.payload(names[at])
    if not name:
        name = names[at]
        head = random.randrange(1, 60) if random.random() < 0.6 else len(payload)
        payload = mutations.damaged(payload[:head], random) + payload[head:]
    if reshapes and random.random() < 0.3:
        _reshape(described, name, record, random)
    file = file.with_payload(name, payload)
    try:
        length = record[4] if len(record) > 4 else None
        known = Record(record[0], tuple(record[1]), CODINGS[record[2]], 0, length)
        data = known.decode(np.frombuffer(payload, np.uint8).copy(), None, 1)
        record[3] = f"{xxhash.xxh3_64_intdigest(data.tobytes()):016x}"
    except SqueezeError:
        pass
    return file.described(_KEY, described).to_bytes()


def _reshape(described: dict[str, Any], name: str, record: list[Any], random: Random) -> None:
    """Another shape of a tensor in the description and in the header that it holds."""
    before = zlib.decompress(base64.b64decode(described["header"]))
    inner = tensorfiles.parsed(before)
    shape = random.choice(([1 << 30, 4], [1 << 40], [3], [0], [1] * 60, [*record[1], 2], record[1][::-1]))
    width = {"BF16": 2, "F16": 2, "F32": 4}[record[0]]
    size = width
    for extent in shape:
        size *= extent
    change = size - (inner.header[name]["data_offsets"][1] - inner.header[name]["data_offsets"][0])
    begin = inner.header[name]["data_offsets"][0]
    for entry in inner.entries().values():
        entry["data_offsets"] = [offset + change if offset > begin else offset for offset in entry["data_offsets"]]
    inner.header[name] |= {"shape": shape, "data_offsets": [begin, begin + size]}
    record[1] = shape
    header = inner.to_bytes()
    described["header"] = base64.b64encode(zlib.compress(header)).decode()
    described["size"] += change + len(header) - len(before)


def _crafted(manifest: dict[str, Any], random: Random) -> dict[str, Any]:
    """Names that leave the folder, and texts that unfold to much."""
    name = random.choice(("../outside", "/tmp/outside", "a/../../b", "config.json", "sub/../config.json", "\0"))
    part = random.choice(("files", "kept"))
    if isinstance(manifest.get(part), dict):
        manifest[part][name] = random.choice((bomb(1 << 27), "0" * 64))
    return manifest


def _large() -> bytes:
    """A matrix large enough to be coded, and one of which most is zero."""
    generator = np.random.default_rng(1)
    values = (generator.standard_normal(4_096).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    sparse = np.where(generator.random(2_048) < 0.6, 0, generator.standard_normal(2_048)).astype(np.float16)
    body = values.tobytes() + sparse.tobytes()
    entries = {
        "a.weight": {"dtype": "BF16", "shape": [64, 64], "data_offsets": [0, 8_192]},
        "zeros": {"dtype": "F16", "shape": [32, 64], "data_offsets": [8_192, 12_288]},
    }
    return TensorFile({tensorfiles.METADATA: {"format": "pt"}, **entries}, body).to_bytes()


def _step(number: int) -> bytes:
    """Weights after so many small steps of training, of which packing counts units of the last place."""
    generator = np.random.default_rng(2)
    values = generator.standard_normal(8_192) + number * generator.normal(0, 1e-5, 8_192)
    entry = {"dtype": "F32", "shape": [64, 128], "data_offsets": [0, 32_768]}
    file = TensorFile({tensorfiles.METADATA: {"format": "pt"}, "a.weight": entry}, values.astype(np.float32).tobytes())
    return file.to_bytes()


def _model() -> dict[str, bytes]:
    """A folder of two shards."""
    shards = {"model-1.safetensors": _large(), "model-2.safetensors": safetensors.sample()}
    places = {name: shard for shard, data in shards.items() for name in tensorfiles.parsed(data).entries()}
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": places}).encode()
    config = b'{"model_type": "llama", "hidden_size": 64}'
    return {**shards, "model.safetensors.index.json": index, "config.json": config, "sub/notes.txt": b"\0\1\2"}


def _write(root: Path, files: dict[str, bytes]) -> Path:
    if set(files) == {""}:
        path = root.with_suffix(".safetensors")
        path.write_bytes(files[""])
        return path
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    root.mkdir(exist_ok=True)
    return root


def _read(root: Path) -> dict[str, bytes]:
    if not root.is_dir():
        return {"": root.read_bytes()}
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _pack(folder: Path, files: dict[str, bytes], **options: Any) -> dict[str, bytes]:
    source = _write(folder, files) if "" not in files else folder.with_suffix(".safetensors")
    if "" in files:
        source.write_bytes(files[""])
    target = folder.with_name(f"{folder.name}.packed" + source.suffix)
    squeeze.pack(source, target, **options)
    found = _read(target)
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    return found


FORMAT = Packed
