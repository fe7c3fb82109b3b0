"""The bytes of a saved KV cache: safetensors with a checksum of all of it, and a description that is checked in full.

The checksum is the first entry of the header, so that it is compared before anything else is read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.errors import DamagedError, FormatError, TruncatedError, printable
from squeeze.kv.records import Record
from squeeze.system.documents import parse_object, parsed_size
from squeeze.system.limits import Limits

__all__ = ["STATE", "SavedFile", "read", "to_bytes"]

FORMAT, VERSION = "squeeze.kv", 1
STATE = ("dropped", "evicted", "coded_tokens", "parts")  # numbers of a layer
_CHECKSUM = "squeeze.kv.xxh3"
_START = f'{{"__metadata__":{{"{_CHECKSUM}":"'.encode()
_PLACE = slice(8 + len(_START), 8 + len(_START) + 16)  # of the checksum, zeros while it is computed
_ZEROS = b"0" * 16
_KEYS = {"format", "version", "policy", "config", "weights", "prompt", "layers", "records"}
_MOST_TOKENS = 1 << 40


@dataclass(frozen=True)
class SavedFile:
    """A checked file. layers: numbers of each, by the names of STATE. prompt: `tokens` and `sha256` of what was read,
    or None."""

    size: int
    policy: Any  # in JSON
    config: str
    weights: str | None
    prompt: dict[str, Any] | None
    layers: list[dict[str, int]]
    records: dict[str, Record]
    payloads: dict[str, np.ndarray]


def to_bytes(description: Mapping[str, Any], payloads: Mapping[str, np.ndarray]) -> bytearray:
    """A file of uint8 payloads. description: all of SavedFile that JSON holds."""
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
    """Raises FormatError and its children where a file is not one or is damaged, LimitError where it is too large."""
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
        raise DamagedError("the checksum of the saved KV cache differs: the file is damaged")
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
