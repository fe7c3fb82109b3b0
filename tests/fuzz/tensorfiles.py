"""Safetensors files by hand, so that their headers can lie."""

import json
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from squeeze.packing import container
from tests.fuzz import mutations

METADATA = "__metadata__"
DTYPES = (
    "BOOL",
    "U8",
    "I8",
    "F8_E4M3",
    "F8_E5M2",
    "F16",
    "BF16",
    "F32",
    "F64",
    "I64",
    "U16",
    "C64",
    "F4",
    "F6_E2M3",
    "X",
)


@dataclass
class TensorFile:
    """header: what its JSON holds; body: the bytes of the tensors. length: of the header, where that is a lie."""

    header: Any
    body: bytes
    length: int | None = None
    pad: int = 0

    def to_bytes(self) -> bytes:
        text = mutations.to_json(self.header, separators=(",", ":")).encode("utf-8", "surrogatepass")
        text += b" " * (-len(text) % 8 + self.pad)
        return (len(text) if self.length is None else self.length).to_bytes(8, "little") + text + self.body

    def described(self, key: str, value: Any) -> "TensorFile":
        """Return the file with another description in its metadata, which is a text, or JSON."""
        text = value if isinstance(value, str) else mutations.to_json(value)
        metadata = {**self.header[METADATA], key: text}
        if container.CHECKSUM in metadata:
            payloads = sorted((entry["data_offsets"], name) for name, entry in self.entries().items())
            sizes = [end - begin for (begin, end), _ in payloads]
            metadata[container.CHECKSUM] = container.header_checksum([name for _, name in payloads], sizes, text)
        return replace(self, header={**self.header, METADATA: metadata})

    def entries(self) -> dict[str, Any]:
        return {name: entry for name, entry in self.header.items() if name != METADATA}

    def payload(self, name: str) -> bytes:
        begin, end = self.header[name]["data_offsets"]
        return self.body[begin:end]

    def with_payload(self, name: str, payload: bytes) -> "TensorFile":
        """Return the file with other bytes of a uint8 tensor, those after it moved."""
        header, body = {METADATA: self.header[METADATA]} if METADATA in self.header else {}, b""
        for other in sorted(self.entries(), key=lambda key: self.header[key]["data_offsets"]):
            piece = payload if other == name else self.payload(other)
            entry = {**self.header[other], "data_offsets": [len(body), len(body) + len(piece)]}
            header[other] = {**entry, "shape": [len(piece)]} if other == name else entry
            body += piece
        return replace(self, header=header, body=body)


def parsed(data: bytes) -> TensorFile:
    length = int.from_bytes(data[:8], "little")
    return TensorFile(json.loads(data[8 : 8 + length]), data[8 + length :])


def mutated(file: TensorFile, random: Random) -> bytes:
    """Another header over the same tensors, or the same one over others."""
    match random.randrange(8):
        case 0:
            return replace(file, length=mutations.size(random, 100)).to_bytes()
        case 1:
            return replace(file, pad=random.choice((1, 8, 100_000))).to_bytes()
        case 2:
            return replace(file, body=mutations.damaged(file.body, random)).to_bytes()
        case 3 | 4:
            return replace(file, header=_retyped(file, random)).to_bytes()
        case 5:
            return replace(file, header=_moved(file, random)).to_bytes()
        case _:
            return replace(file, header=mutations.mutated(file.header, random)).to_bytes()


def _retyped(file: TensorFile, random: Random) -> Any:
    """Other types and shapes, sometimes of as many bytes."""
    header = json.loads(json.dumps(file.header))
    name = random.choice(list(file.entries()))
    entry = header[name]
    entry["dtype"] = random.choice(DTYPES) if random.random() < 0.5 else entry["dtype"]
    shape = entry["shape"]
    wild = [random.choice(mutations.SIZES) for _ in range(random.randrange(4))]
    entry["shape"] = random.choice((shape[::-1], [*shape, 1], [*shape, 0], [1] * 70, shape[:-1], wild, shape))
    return header


def _moved(file: TensorFile, random: Random) -> Any:
    """Names or places changed among tensors."""
    header = json.loads(json.dumps(file.header))
    one, other = random.choice(list(file.entries())), random.choice(list(file.entries()))
    header[one], header[other] = header[other], header[one]
    if random.random() < 0.5:
        header[random.choice(mutations.TEXTS)] = header.pop(one)
    return header
