"""The bytes of a saved cache: coded tensors with their records, and one checksum over the file.

Tensors are coded by packing/tensors/floats.py. Codes in rows that run along tokens are also tried as differences. The
checksum is the first entry of the header, so that it is compared before the rest is parsed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import named
from squeeze.errors import DamagedError, FormatError, SqueezeError, TruncatedError, printable
from squeeze.kv.codes import pack, unpack
from squeeze.packing.tensors import floats
from squeeze.system.documents import parse_object, parsed_size
from squeeze.system.limits import Limits

__all__ = ["STATE", "Record", "SavedFile", "decoded", "encoded", "read", "to_bytes"]

_DTYPES = {"U8": torch.uint8, "I32": torch.int32, "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_NAMES = {dtype: name for name, dtype in _DTYPES.items() if name != "I32"}  # that a cache can hold
_WIDTHS = (2, 4, 8)  # widths of codes that may be stored as differences
_MOST_RANK, _MOST_SIZE = 8, 1 << 40


@dataclass(frozen=True)
class Record:
    """The record of a stored tensor.

    Attributes:
        width: Bits of its codes if they run along tokens, otherwise 0.
        xxh3: The XXH3 of its bytes.
    """

    coding: str
    dtype: str
    shape: list[int]
    width: int
    xxh3: str

    @staticmethod
    def describes(record: Any) -> bool:
        """Return whether a JSON value has the fields of a record."""
        if not isinstance(record, dict) or record.keys() != {"coding", "dtype", "shape", "width", "xxh3"}:
            return False
        coding, dtype, shape, width, checksum = (record[k] for k in ("coding", "dtype", "shape", "width", "xxh3"))
        if not all(isinstance(text, str) for text in (coding, dtype, checksum)) or not isinstance(shape, list):
            return False
        return (
            coding in ("rans", "stored", "delta", "archive")
            and dtype in _DTYPES
            and (coding == "archive") == (dtype == "I32")
            and len(shape) <= _MOST_RANK
            and all(type(size) is int and 0 <= size < _MOST_SIZE for size in shape)
            and type(width) is int
            and width in (0, *_WIDTHS)
            and (coding != "delta" or (width in _WIDTHS and dtype == "U8" and len(shape) == 5))
            and re.fullmatch("[0-9a-f]{16}", checksum) is not None
        )

    @property
    def size(self) -> int:
        """The bytes of the tensor."""
        return prod(self.shape) * _DTYPES[self.dtype].itemsize

    @property
    def memory(self) -> int:
        """Return the bytes of memory for decoding, including the tensor.

        Codes of differences take a byte each. The states of coefficients are counted where they are restored.
        """
        return self.size * (2 + (5 * 8 // self.width if self.coding == "delta" else 0))


def encoded(tensor: torch.Tensor, width: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the shortest of three codings of a tensor as uint8, and its record.

    Args:
        tensor: The tensor.
        width: Bits of codes whose rows run along tokens, otherwise 0.

    Raises:
        SqueezeError: The file cannot hold this dtype.
    """
    dtype = _NAMES.get(tensor.dtype)
    if dtype is None:
        raise SqueezeError(f"a cache of {tensor.dtype} cannot be saved")
    plain = tensor.detach().cpu().contiguous()
    raw = plain.view(torch.uint8).numpy().reshape(-1) if plain.numel() else np.empty(0, np.uint8)
    candidates = {"rans": floats.encode(raw, dtype) if raw.size else None}
    if width and raw.size:
        candidates["delta"] = floats.encode(_differences(plain, width).numpy().reshape(-1), dtype)
    candidates["stored"] = raw
    coding = min((name for name, data in candidates.items() if data is not None), key=lambda n: candidates[n].size)  # type: ignore[union-attr]
    payload = np.ascontiguousarray(candidates[coding])
    return payload, asdict(Record(coding, dtype, list(plain.shape), width, xxhash.xxh3_64_hexdigest(raw.data)))


def _differences(codes: torch.Tensor, width: int, inverse: bool = False) -> torch.Tensor:
    """Return packed codes [B, H, n, rows, bytes] as differences modulo 2^width within each row, or undo that."""
    count = codes.shape[-1] * 8 // width
    values = unpack(codes, width, count)
    joined = values.transpose(2, 3).flatten(3)  # rows over all blocks
    if inverse:
        changed = joined.cumsum(-1, dtype=torch.uint8)  # modulo 256, of which 2^width is a divisor
    else:
        changed = joined.diff(dim=-1, prepend=joined.new_zeros((*joined.shape[:-1], 1)))
    changed &= (1 << width) - 1
    return pack(changed.unflatten(3, (-1, count)).transpose(2, 3), width)


def decoded(name: str, payload: np.ndarray, record: Record) -> torch.Tensor:
    """Decode a tensor. Raise DamagedError if payload and record do not match."""
    kind, size, shape = _DTYPES[record.dtype], record.size, record.shape
    if record.coding == "stored" and payload.size != size:
        raise DamagedError(f"{named(name)}: its record is invalid")
    try:
        raw = payload if record.coding == "stored" else floats.decode(payload, record.dtype, size)
        if record.coding == "delta":
            raw = _differences(torch.from_numpy(raw).view(*shape), record.width, inverse=True).contiguous().numpy()
    except DamagedError as error:
        raise DamagedError(f"{named(name)}: {error}") from None
    except (ValueError, IndexError, RuntimeError):
        raise DamagedError(f"{named(name)}: its record is invalid") from None
    raw = raw.reshape(-1).view(np.uint8)
    if raw.size != size or xxhash.xxh3_64_hexdigest(raw.data) != record.xxh3:
        raise DamagedError(f"{named(name)} has a checksum mismatch: the file is damaged")
    if not size:
        return torch.empty(shape, dtype=kind)
    if record.coding == "stored":
        raw = raw.copy()  # the payload is a part of the file
    return torch.from_numpy(raw).view(kind).view(*shape)


FORMAT, VERSION = "squeeze.kv", 1
STATE = ("dropped", "evicted", "coded_tokens", "parts")  # numbers of a layer
_CHECKSUM = "squeeze.kv.xxh3"
_START = f'{{"__metadata__":{{"{_CHECKSUM}":"'.encode()
_PLACE = slice(
    8 + len(_START), 8 + len(_START) + 16
)  # the place of the checksum, filled with zeros while it is computed
_ZEROS = b"0" * 16
_KEYS = {"format", "version", "policy", "config", "weights", "prompt", "layers", "records"}
_MOST_TOKENS = 1 << 40


@dataclass(frozen=True)
class SavedFile:
    """A file whose checksum was verified.

    Attributes:
        layers: The numbers of each layer, by the names in STATE.
        prompt: `tokens` and `sha256` of what the cache has read, or None.
    """

    size: int
    policy: Any  # in JSON
    config: str
    weights: str | None
    prompt: dict[str, Any] | None
    layers: list[dict[str, int]]
    records: dict[str, Record]
    payloads: dict[str, np.ndarray]


def to_bytes(description: Mapping[str, Any], payloads: Mapping[str, np.ndarray]) -> bytearray:
    """Return the bytes of a file from uint8 payloads and a description: the fields of SavedFile, as JSON."""
    text = json.dumps({"format": FORMAT, "version": VERSION, **description})
    entries: dict[str, Any] = {"__metadata__": {_CHECKSUM: _ZEROS.decode(), FORMAT: text}}
    order = sorted(payloads, key=lambda name: payloads[name].size % 8 != 0)  # so that words are aligned
    offset = 0
    for name in order:
        size = payloads[name].size
        entries[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    header = json.dumps(entries, separators=(",", ":")).encode()
    header = header.ljust(-(-len(header) // 8) * 8)
    data = bytearray().join([len(header).to_bytes(8, "little"), header, *(payloads[name].data for name in order)])
    data[_PLACE] = xxhash.xxh3_64_hexdigest(data).encode()
    return data


def read(path: Path, limits: Limits) -> SavedFile:
    """Read a file and verify its checksum.

    Raises:
        FormatError: The file is not a saved cache, or is damaged.
        LimitError: Its header needs more memory than `limits` allow.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        limits.need_memory(size, "the file")
        header = tensorfile.read_header(file, size)
        data = np.fromfile(file, np.uint8)
    if len(header) + data.size != size:
        raise TruncatedError("the file was cut off while it was read")
    is_checked = header[8 : _PLACE.start] == _START
    is_damaged = is_checked and _checksum(header, data) != header[_PLACE]
    try:
        parsed = tensorfile.parse(path, size, header, limits)
    except FormatError as error:
        if isinstance(error, TruncatedError) or not is_damaged:
            raise
    if is_damaged:
        raise DamagedError("checksum mismatch in the saved KV cache: the file is damaged")
    metadata = parsed.metadata or {}
    if FORMAT not in metadata:
        raise FormatError("is a safetensors file, but not a saved KV cache")
    described = _described(metadata[FORMAT], limits)
    if not is_checked or metadata.keys() != {FORMAT, _CHECKSUM}:
        raise _unreadable()
    start = len(header)
    payloads = {tensor.name: data[tensor.begin - start : tensor.end - start] for tensor in parsed.tensors}
    if described["records"].keys() != payloads.keys() or any(one.dtype != "U8" for one in parsed.tensors):
        raise DamagedError("the header's records are not those of its tensors")
    records = {name: Record(**record) for name, record in described["records"].items()}
    fields = {name: described[name] for name in ("policy", "config", "weights", "prompt", "layers")}
    return SavedFile(size, **fields, records=records, payloads=payloads)


def _checksum(header: bytes, data: np.ndarray) -> bytes:
    digest = xxhash.xxh3_64(header[: _PLACE.start] + _ZEROS + header[_PLACE.stop :])
    digest.update(data.data)
    return digest.hexdigest().encode()


def _described(text: str, limits: Limits) -> dict[str, Any]:
    limits.need_memory(parsed_size(text), "the description of the saved KV cache")
    try:
        described = parse_object(text)
    except FormatError:
        raise _unreadable() from None
    version = described.get("version")
    if type(version) is int and version != VERSION:
        came = printable(repr(version))
        raise FormatError(f"expected version {VERSION} of a saved KV cache, got {came}: use a newer squeeze")
    if not (
        described.keys() == _KEYS
        and type(version) is int
        and described["format"] == FORMAT
        and _is_digest(described["config"], 64)
        and (described["weights"] is None or _is_digest(described["weights"], 16))
        and isinstance(described["layers"], list)
        and all(map(_is_state, described["layers"]))
        and isinstance(described["records"], dict)
        and all(map(Record.describes, described["records"].values()))
        and (described["prompt"] is None or _is_prompt(described["prompt"]))
    ):
        raise _unreadable()
    return described


def _is_digest(value: Any, digits: int) -> bool:
    return isinstance(value, str) and re.fullmatch(f"[0-9a-f]{{{digits}}}", value) is not None


def _is_prompt(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"tokens", "sha256"}
        and type(value["tokens"]) is int
        and 0 <= value["tokens"] < _MOST_TOKENS
        and _is_digest(value["sha256"], 64)
    )


def _is_state(state: Any) -> bool:
    return (
        isinstance(state, dict)
        and state.keys() == set(STATE)
        and all(type(value) is int and 0 <= value < _MOST_TOKENS for value in state.values())
    )


def _unreadable() -> DamagedError:
    return DamagedError("the description of the saved KV cache is not readable")
