"""Tensors of bundles for loaders that read payloads by name: each gets a payload of its own, in a scratch file.

In a packed file only the first tensor of a bundle has a payload under its name (docs/format.md, section 10.14). A
loader reads the scratch file after the packed ones, so that its payloads replace those of the bundles.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Bytes
from squeeze.integrations.load_options import current
from squeeze.integrations.packed import base_of
from squeeze.packing import container
from squeeze.packing.base import Base
from squeeze.packing.codings import STORED
from squeeze.packing.container import PackedFile
from squeeze.packing.others import Others
from squeeze.packing.record import Record
from squeeze.packing.sources import Source
from squeeze.packing.tensors.content import InFile
from squeeze.system.binary import Positional
from squeeze.system.limits import Limits

__all__ = ["has_bundles", "later_members", "write_members"]


def has_bundles(packed: PackedFile) -> bool:
    """Return whether tensors of a packed file have a payload together."""
    return any(record.coding.is_member for record in packed.description.records)


def later_members(files: Sequence[str]) -> dict[str, tuple[Record, Bytes]]:
    """Return the records and bytes of those tensors of packed files that have no payload under their name."""
    packed = [container.read(Path(name)) for name in files]
    base = _base_of_bundles(packed)
    found = dict[str, tuple[Record, Bytes]]()
    for one in filter(has_bundles, packed):
        named = set(tensorfile.read(one.file.path).by_name)
        for name, record, data in _members(one, base):
            if name not in named:
                found[name] = replace(record, coding=STORED), data
    return found


def _members(packed: PackedFile, base: Base | None) -> Iterator[tuple[str, Record, Bytes]]:
    """Yield name, record and bytes of each tensor in a bundle, after comparing its checksum. Raises DamagedError."""
    others = Others(packed, base, Limits())
    with packed.file.path.open("rb") as file:
        reading = Positional(file)
        for tensor, record in zip(packed.file.tensors, packed.description.records, strict=True):
            if not record.coding.is_member:
                continue
            with ExitStack() as opened:
                other = others.content_for(record, tensor.name, "", opened)
                payload = InFile(reading, tensor.begin, tensor.size)
                data = record.restore_content(tensor.name, payload, other, 1)
            yield tensor.name, record, data


def _base_of_bundles(files: Sequence[PackedFile], known: Base | None = None) -> Base | None:
    """Return the base that tensors in bundles need, or None: that of other tensors may be elsewhere."""
    asking = [
        packed
        for packed in files
        if any(record.coding.is_member and record.coding.is_difference for record in packed.description.records)
    ]
    return base_of(asking, known or current().base) if asking else None


def write_members(files: Sequence[PackedFile], target: Path, base: Base | None = None) -> None:
    """Write the tensors of all bundles as a packed file without bundles.

    Args:
        files: the packed files.
        target: the file, which must not exist.
        base: the base of differences, if it is known.

    Raises DamagedError if one has another checksum, and SqueezeError if a base is missing or wrong.
    """
    base = _base_of_bundles(files, base)
    found = {name: (record, data) for packed in files for name, record, data in _members(packed, base)}
    entries, offset = {}, 0
    for name, (record, data) in found.items():
        offsets = [offset, offset := offset + data.size]
        entries[name] = {"dtype": record.dtype, "shape": list(record.shape), "data_offsets": offsets}
    text = json.dumps(entries, ensure_ascii=False).encode()
    header = len(text).to_bytes(8, "little") + text
    original = Source(tensorfile.parse(target, len(header) + offset, header))
    state = hashlib.sha256(header)
    coded = []
    for tensor in original.file.tensors:
        record, data = found[tensor.name]
        state.update(data.data)
        coded.append(((Record.of(tensor, STORED, record.checksum),), data.size))
    with target.open("xb") as writing:
        writing.write(container.header_of(original, "runtime", (), coded, state.hexdigest(), 0))
        for tensor in original.file.tensors:
            writing.write(np.ascontiguousarray(found[tensor.name][1]).data)
