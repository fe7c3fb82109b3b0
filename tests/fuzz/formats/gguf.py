"""A GGUF file: no checksum, so it is refused, or read as what it declares."""

import json
import math
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.errors import VerifyError
from squeeze.integrations.gguf.export import Export
from squeeze.integrations.gguf.import_ import import_gguf
from squeeze.lm import loading, models
from squeeze.lm.gguffile import GgufFile
from tests.fuzz import mutations, tensorfiles
from tests.fuzz.judging import SAME, TRUE, Wrong, one_of
from tests.fuzz.limited import limited
from tests.makers import gguf_models, tiny_models

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_TEXT = b"def of(the, and):\n    return a or to"


@dataclass(frozen=True)
class Field:
    """A key, a type, and the bytes of a value."""

    key: bytes
    kind: int
    value: bytes


@dataclass(frozen=True)
class Info:
    """A tensor in the file's table."""

    name: bytes
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class Parts:
    """version, counts: where None, the true ones are written."""

    fields: tuple[Field, ...]
    infos: tuple[Info, ...]
    data: bytes
    version: int = 3
    counts: tuple[int | None, int | None] = (None, None)

    def to_bytes(self) -> bytes:
        tensors, fields = self.counts
        out = b"GGUF" + struct.pack("<I", self.version)
        out += struct.pack("<Q", len(self.infos) if tensors is None else tensors)
        out += struct.pack("<Q", len(self.fields) if fields is None else fields)
        for field in self.fields:
            out += _string(field.key) + struct.pack("<I", field.kind) + field.value
        for info in self.infos:
            out += _string(info.name) + struct.pack("<I", len(info.shape))
            out += struct.pack(f"<{len(info.shape)}Q", *info.shape) + struct.pack("<IQ", info.kind, info.offset)
        return out + bytes(-len(out) % 32) + self.data


def _string(text: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def unpack(self, layout: str) -> Any:
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))

    def string(self) -> bytes:
        return self.take(self.unpack("Q")[0])

    def value(self, kind: int) -> bytes:
        begun = self.at
        if kind == _STRING:
            self.string()
        elif kind == _ARRAY:
            item, count = self.unpack("IQ")
            for _ in range(count):
                self.value(item)
        else:
            self.take(struct.calcsize("<" + _SCALARS[kind]))
        return self.data[begun : self.at]


def parsed(data: bytes) -> Parts:
    reader = _Reader(data)
    reader.take(4)
    _, tensors, count = reader.unpack("IQQ")
    fields, infos = [], []
    for _ in range(count):
        key, (kind,) = reader.string(), reader.unpack("I")
        fields.append(Field(key, kind, reader.value(kind)))
    for _ in range(tensors):
        name, (dimensions,) = reader.string(), reader.unpack("I")
        infos.append(Info(name, reader.unpack(f"{dimensions}Q"), *reader.unpack("IQ")))
    reader.take(-reader.at % 32)
    return Parts(tuple(fields), tuple(infos), data[reader.at :])


@dataclass(frozen=True)
class Case:
    data: bytes
    way: str


class Gguf:
    """Tiny models with the two kinds of tokenizers, of floats and of blocks; imported, loaded, and used to compress."""

    seconds = 0.05

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        kinds, bytes_of = gguf.GGMLQuantizationType, tiny_models.byte_level()
        paths = [
            tiny_models.write_gguf(folder / "a.gguf", tiny_models.byte_level()),
            tiny_models.write_gguf(folder / "b.gguf", tiny_models.sentence_piece(), kind=kinds.Q8_0),
            tiny_models.write_gguf(folder / "c.gguf", bytes_of, _biased(bytes_of), kinds.Q4_1, "qwen2"),
        ]
        runs_exactly = len(paths)
        paths += [_exported(kind, folder) for kind in ("mixtral", "gemma2")]
        self.samples = [path.read_bytes() for path in paths]
        for number, data in enumerate(self.samples):
            for way in ("import", "load", "compress") if number < runs_exactly else ("import",):
                (box := folder / f"{number}.{way}").mkdir()
                self.read(Case(data, way), box)

    def mutate(self, random: Random) -> Case:
        data = random.choice(self.samples)
        changed = one_of(
            random,
            (2, lambda r: mutations.damaged(data, r)),
            (1, lambda r: mutations.damaged(data[:2_000], r) + data[2_000:]),
            (1, lambda r: mutations.spliced(data, r.choice(self.samples), r)),
            (6, lambda r: _changed(parsed(data), r).to_bytes()),
        )
        return Case(changed, random.choice(("import", "import", "load", "compress")))

    def read(self, case: Case, folder: Path) -> str:
        path = folder / "tiny.gguf"
        path.write_bytes(case.data)
        if case.way == "import":
            limited(import_gguf, path, folder / "out")
            _check_imported(GgufFile(path), folder / "out")
        elif case.way == "load":
            weights = limited(loading.load, path)
            if weights.config.layers != len(weights.layers):
                raise Wrong("load: other layers than declared")
        else:
            _round_trip(path)
        return SAME if case.data in self.samples else TRUE


def _biased(tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """The tensors of a tiny network with the biases that Qwen 2 has."""
    values = tiny_models.tensors(tokenizer.get_vocab_size())
    biased = [name for name in values if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]
    return values | {name.replace("weight", "bias"): values[name][:, 0].copy() for name in biased}


def _exported(kind: str, folder: Path) -> Path:
    """A tiny network that only import reads."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    sizes |= {"head_dim": 16, "query_pre_attn_scalar": 16}
    model = gguf_models.save(kind, folder / kind, **sizes)
    Export.of(Checkpoint.open(model)).write(folder / f"{kind}.gguf")
    return folder / f"{kind}.gguf"


def _check_imported(file: GgufFile, out: Path) -> None:
    """Tensors are those of the file, by their shapes; the description is JSON that says so."""
    shapes = [shape for name, shape in file.shapes.items() if name != "rope_freqs.weight"]
    parts = [part for shape in shapes for part in ([shape[1:]] * shape[0] if len(shape) > 2 else [shape])]  # of experts
    declared = sorted(map(math.prod, parts))
    found = tensorfiles.parsed((out / "model.safetensors").read_bytes()).entries().values()
    if sorted(math.prod(entry["shape"]) for entry in found) != declared:
        raise Wrong("import: other shapes than declared")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        json.loads((out / name).read_bytes())


def _round_trip(path: Path) -> None:
    try:
        coded = squeeze.compress(_TEXT, 8, model=path, threads=1)
    except VerifyError:
        raise Wrong("compress: what was coded does not decode") from None
    if squeeze.decompress(coded, model=path, threads=1) != _TEXT:
        raise Wrong("compress: a round trip gives other bytes")
    models._loaded.cache_clear()


def _changed(parts: Parts, random: Random) -> Parts:
    for _ in range(random.choice((1, 1, 2))):
        parts = random.choice((_field, _field, _field, _info, _info, _tables))(parts, random)
    return parts


def _field(parts: Parts, random: Random) -> Parts:
    """A field of the metadata is another, or gone, or there twice."""
    fields = list(parts.fields)
    at = random.randrange(len(fields))
    field = fields[at]
    match random.randrange(7):
        case 0:
            del fields[at]
        case 1:
            fields.insert(at, field)
        case 2:
            fields[at] = replace(field, kind=random.choice((*range(14), 2**31)))
        case 3:
            fields[at] = replace(field, key=_words(random))
        case 4:
            fields[at] = replace(field, value=mutations.damaged(field.value, random))
        case _:
            kind = field.kind if random.random() < 0.7 else random.choice((*_SCALARS, _STRING, _ARRAY))
            fields[at] = replace(field, kind=kind, value=_value(kind, field, random))
    return replace(parts, fields=tuple(fields))


def _value(kind: int, field: Field, random: Random) -> bytes:
    if kind == _STRING:
        return _string(_words(random), random.choice((None, None, None, 0, 2**31, 2**63, 2**64 - 1)))
    if kind == _ARRAY and field.kind == _ARRAY:
        item, count = struct.unpack("<IQ", field.value[:12])
        count = random.choice((count - 1, count + 1, 0, 2**31, 2**62, 2**64 - 1)) % 2**64
        return struct.pack("<IQ", random.choice((item, item, 8, 9, 4, 99)), count) + field.value[12:]
    if kind == _ARRAY:
        return struct.pack("<IQ", random.choice((4, 8, 9)), 1) + b"\1" + bytes(11)
    layout = _SCALARS.get(kind, "I")
    if layout in "fd":
        return struct.pack(f"<{layout}", random.choice((0.0, -1.0, 1e-30, 3e38, math.nan, math.inf, -math.inf)))
    width = 8 * struct.calcsize(layout)
    number = random.choice((0, 1, 2, 3, 5, 7, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)) % (1 << width)
    return number.to_bytes(width // 8, "little")


def _words(random: Random) -> bytes:
    return str(random.choice(mutations.TEXTS)).encode("utf-8", "surrogatepass") + random.choice((b"", b"", b"\xff"))


def _info(parts: Parts, random: Random) -> Parts:
    """A tensor has another name, shape, type or place."""
    infos = list(parts.infos)
    at = random.randrange(len(infos))
    info, other = infos[at], random.choice(infos)
    wild = tuple(random.choice((0, 1, 2**31, 2**32, 2**62, 2**63, 2**64 - 1)) for _ in range(random.randrange(6)))
    match random.randrange(8):
        case 0:
            del infos[at]
        case 1:
            infos.insert(at, info)
        case 2:
            infos[at] = replace(info, name=random.choice((other.name, _words(random), b"rope_freqs.weight")))
        case 3:
            infos[at] = replace(info, shape=random.choice((wild, info.shape[::-1], (*info.shape, 1), info.shape[:-1])))
        case 4:
            infos[at] = replace(info, kind=random.choice((*range(40), 2**31)))
        case 5:
            infos[at] = replace(info, offset=random.choice((0, 1, info.offset + 1, 2**40, 2**63, 2**64 - 32)))
        case 6:
            infos[at], infos[infos.index(other)] = replace(info, name=other.name), replace(other, name=info.name)
        case _:
            infos[at] = replace(info, shape=tuple(max(n + random.choice((-1, 1, 32)), 0) for n in info.shape))
    return replace(parts, infos=tuple(infos))


def _tables(parts: Parts, random: Random) -> Parts:
    """Counts that lie, another version, or other data."""
    match random.randrange(4):
        case 0:
            return replace(parts, version=random.choice((0, 1, 2, 4, 2**32 - 1)))
        case 1:
            return replace(parts, data=parts.data[: random.randrange(len(parts.data) + 1)])
        case 2:
            return replace(parts, data=mutations.damaged(parts.data, random))
        case _:
            lies = (None, 0, 1, len(parts.infos) + 1, 2**31, 2**63, 2**64 - 1)
            return replace(parts, counts=(random.choice(lies), random.choice(lies)))


FORMAT = Gguf
