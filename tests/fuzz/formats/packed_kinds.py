"""Packed checkpoints of codings with payloads of their own: grids, blocks of GGUF, and bytes that tensors share."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import gguf
import numpy as np
import torch
import xxhash
from safetensors.torch import save

from squeeze.packing import container, folder as folders, shared
from squeeze.packing.shared import LITERAL, PIECE, Run, Table
from squeeze.packing.tensors.block_types import streams_of
from squeeze.packing.tensors.content import InMemory
from tests.fuzz import mutations, tensorfiles
from tests.fuzz.formats.packed import Case, Packed, _pack, _recoded
from tests.fuzz.judging import one_of
from tests.fuzz.tensorfiles import TensorFile

Files = dict[str, bytes]
_SUFFIXES = (".safetensors", ".gguf")


class Kinds(Packed):
    """Packed files of one kind, whose payloads are changed and given the checksum of what they decode to."""

    def __init__(self, name: str, folder: Path, kind: str) -> None:
        self.name, self.kind = name, kind
        samples = _SAMPLES[kind]()
        self.originals, self.options = [files for files, _ in samples], [dict[str, Any]() for _ in samples]
        self.ways = ("unpack", "unpack", "verify", *(("load",) if kind != "gguf" else ()))
        self.packed = [_pack(folder / str(n), files, level=level) for n, (files, level) in enumerate(samples)]
        for number, files in enumerate(self.packed):
            described = [json.dumps(_records(data)) for name, data in files.items() if _is_packed(name)]
            assert any(_WORDS[kind] in one for one in described), described
            for way in sorted(set(self.ways)):
                (box := folder / f"{number}.{way}").mkdir()
                self.read(Case(files, number, way), box)

    def mutate(self, random: Random) -> Case:
        number = random.randrange(len(self.packed))
        files = dict(self.packed[number])
        name = random.choice([name for name in files if _is_packed(name)])
        file = tensorfiles.parsed(files[name])
        files[name] = one_of(
            random,
            (1, lambda r: mutations.damaged(files[name], r)),
            (1, lambda r: tensorfiles.mutated(file, r)),
            (1, lambda r: _redescribed(file, r)),
            (6, lambda r: self._rewritten(number, name, file, r)),
        )
        return Case(files, number, random.choice(self.ways))

    def _rewritten(self, number: int, name: str, file: TensorFile, random: Random) -> bytes:
        """Return a file with another payload, of which the checksum and the hash are made right if that can be."""
        if self.kind != "shared":
            return _resized(file, random)
        known = self.originals[number]
        tensors = {
            (other if other != name else "", tensor): parsed.payload(tensor)
            for other, parsed in ((other, tensorfiles.parsed(data)) for other, data in known.items())
            for tensor in parsed.entries()
        }
        return _reshared(file, tensors, random)


def _is_packed(name: str) -> bool:
    return name == "" or (name.endswith(_SUFFIXES) and name != folders.MANIFEST)


def _records(data: bytes) -> Any:
    return json.loads(tensorfiles.parsed(data).header[tensorfiles.METADATA][container.KEY])["tensors"]


def _redescribed(file: TensorFile, random: Random) -> bytes:
    described = json.loads(file.header[tensorfiles.METADATA][container.KEY])
    return file.described(container.KEY, mutations.mutated(described, random)).to_bytes()


def _resized(file: TensorFile, random: Random) -> bytes:
    """Return a file with another payload. Numbers in its first bytes change more often than others."""
    if random.random() < 0.5:
        return _recoded(file, random, reshapes=False)
    name = random.choice(list(file.entries()))
    payload = bytearray(file.payload(name))
    width = random.choice((1, 2, 4, 8))
    at = random.randrange(min(len(payload), 64)) // width * width
    before = int.from_bytes(payload[at : at + width], "little")
    value = random.choice((0, 1, before + 1, before - 1, before * 2, 2 ** (8 * width) - 1)) % (1 << 8 * width)
    payload[at : at + width] = value.to_bytes(width, "little")
    return _recoded(file.with_payload(name, bytes(payload)), random, reshapes=False, name=name)


def _reshared(file: TensorFile, tensors: dict[tuple[str, str], bytes], random: Random) -> bytes:
    """Return a file in which a tensor shares other bytes, with the checksum of what they are."""
    described = json.loads(file.header[tensorfiles.METADATA][container.KEY])
    order = sorted(file.entries(), key=lambda key: file.header[key]["data_offsets"])
    places = [n for n, record in enumerate(described["tensors"]) if record[2].startswith("shared")]
    if not places:
        return _redescribed(file, random)
    at = random.choice(places)
    payload = np.frombuffer(file.payload(order[at]), np.uint8)
    size = int(np.prod(described["tensors"][at][1])) * 2
    table, rest = shared.read(InMemory(payload), size)
    literals = payload[payload.size - rest.size :].tobytes()
    if random.random() < 0.3:
        literals = mutations.damaged(literals, random) if literals else random.randbytes(9)
    table = _other_table(table, [*tensors], size, random)
    data = b"".join(
        tensors.get(table.sources[run.source], b"")[run.begin : run.begin + run.size]
        for run in table.runs
        if run.source in range(len(table.sources))
    )
    if len(data) == size:
        described["tensors"][at][3] = f"{xxhash.xxh3_64_intdigest(data):016x}"
    text = table.to_bytes()
    if random.random() < 0.2:
        text = mutations.damaged(text, random)
    return file.with_payload(order[at], text + literals).described(container.KEY, described).to_bytes()


def _other_table(table: Table, names: list[tuple[str, str]], size: int, random: Random) -> Table:
    """Return a table with another source, or other runs, which mostly have the tensor's size in all."""
    sources, runs = list(table.sources), list(table.runs)
    at = random.randrange(len(runs))
    run = runs[at]
    match random.randrange(6):
        case 0:
            sources[random.randrange(len(sources))] = random.choice(
                [*names, ("..", "a"), ("/etc/passwd", "x"), ("", "")]
            )
        case 1:
            runs[at] = replace(run, begin=random.choice((0, 1, run.begin + PIECE, size, -1, 1 << 40, 2**63)))
        case 2:
            runs[at] = replace(run, source=random.choice((LITERAL, 0, 1, len(sources), -2)))
        case 3:
            runs[at] = replace(run, size=mutations.size(random, run.size))
        case 4:
            runs = [Run(0, 0, size)]
            sources = [random.choice(names)]
        case _:
            runs[at : at + 1] = [Run(run.source, run.begin, PIECE), replace(run, size=run.size - PIECE)]
    return Table(tuple(sources), tuple(runs))


def _grids() -> list[tuple[Files, str]]:
    weights = torch.randn((64, 256), generator=torch.Generator().manual_seed(3)) * 0.02
    groups = weights.view(-1, 64)
    scales = groups.abs().amax(1, keepdim=True)
    least = groups.amin(1, keepdim=True)
    steps = (groups.amax(1, keepdim=True) - least) / 15
    zeros = (-least / steps).round()
    eights = (groups / scales * 448).to(torch.float8_e4m3fn).float() * (scales / 448)
    tensors = {
        "symmetric": ((groups / scales * 7).round() * (scales / 7)).view(64, 256),
        "affine": (((groups / steps).round() + zeros).clamp(0, 15).sub(zeros) * steps).view(64, 256),
        "columns": ((groups / scales * 7).round() * (scales / 7)).view(64, 256).T.contiguous(),
        "e4m3": eights.view(64, 256),
        "palette": groups[:1].repeat(256, 1)[:, torch.arange(64) % 5].view(64, 256).contiguous(),
    }
    whole = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    half = save({name: tensor.bfloat16().contiguous() for name, tensor in tensors.items()})
    return [({"": whole}, "runtime"), ({"": half}, "runtime"), ({"": half}, "archive")]


def _gguf_files() -> list[tuple[Files, str]]:
    chance, kinds = np.random.default_rng(1), gguf.GGMLQuantizationType
    writer = gguf.GGUFWriter("", "llama")
    for kind, width in ((kinds.Q4_K, 144), (kinds.Q6_K, 210), (kinds.Q8_0, 34), (kinds.Q4_0, 18)):
        values = _blocks(kind.name, width, 64, chance)
        writer.add_tensor(f"{kind.name}.weight", values.reshape(8, -1), raw_dtype=kind)
    writer.add_tensor("norm.weight", chance.normal(size=256).astype(np.float32))
    data = _written(writer)
    return [({"model.gguf": data, "config.json": b"{}"}, level) for level in ("runtime", "archive")]


def _blocks(kind: str, width: int, count: int, chance: np.random.Generator) -> np.ndarray:
    """Return blocks of a type whose codes and scales are more often in the middle than at the ends, uint8."""
    out = np.zeros((count, width), np.uint8)
    for stream in streams_of(kind):
        for byte, bit, bits, above, other, more in stream.elements.tolist():
            most = (1 << bits + more) - 1
            values = np.clip(chance.normal(most / 2, most / 12, count), 0, most).astype(np.int64)
            out[:, byte] |= ((values & (1 << bits) - 1) << bit).astype(np.uint8)
            out[:, above] |= (values >> bits << other).astype(np.uint8)
    return out


def _written(writer: gguf.GGUFWriter) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        writer.write_header_to_file(Path(folder, "a.gguf"))
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return Path(folder, "a.gguf").read_bytes()


def _shared_files() -> list[tuple[Files, str]]:
    generator = torch.Generator().manual_seed(5)
    one, other = (torch.randn(count * PIECE // 2, generator=generator).bfloat16() for count in (2, 1))
    first, second = one.chunk(2)
    alone = save({"a": one, "b": torch.cat([second, other, first]), "c": one.clone()})
    two = {"x.safetensors": save({"a": one}), "y.safetensors": save({"b": torch.cat([other, second]), "c": one})}
    return [({"": alone}, "runtime"), (two, "fast")]


_SAMPLES: dict[str, Callable[[], list[tuple[Files, str]]]] = {
    "grid": _grids,
    "gguf": _gguf_files,
    "shared": _shared_files,
}
_WORDS = {"grid": "grid", "gguf": "block", "shared": "shared"}

FORMAT = Kinds
