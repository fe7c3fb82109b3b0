"""Entropy of the fields of a checkpoint's numbers, compared with the size that their coding reaches.

The fields of a float are its exponent, and its sign and mantissa. For fp32 and wider types the mantissa is split into
bytes. The *bound* is the sum of the zero-order entropies over tensors and fields. A code that knows only the
frequencies of each field cannot be shorter. rans.py codes both fields together, so it can.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Bytes, Tensor
from squeeze.errors import FormatError, escaped
from squeeze.packing import folder
from squeeze.packing.base import Base, file_of
from squeeze.packing.coding import Subject
from squeeze.packing.codings import encode_in_memory
from squeeze.packing.manifest import METHODS
from squeeze.packing.others import Others
from squeeze.packing.pack import Progress, shared_in
from squeeze.packing.repeats import Sharing
from squeeze.packing.run import taking_part
from squeeze.packing.tensors.content import whole
from squeeze.packing.tensors.float_payload import DTYPES
from squeeze.system import extras
from squeeze.system.documents import read_object
from squeeze.system.limits import Limits
from squeeze.system.storage import path_of, remote

_PIECE = 1 << 22  # values counted at a time
_WIDTHS = (12, 12, 9, 12, 9)  # of the columns of sizes

# Fields of each float dtype from the highest bit below the sign down: name, bits. The sign joins the second.
_FIELDS = {
    "F8_E4M3": (("exponent", 4), ("sign and mantissa", 3)),
    "F8_E5M2": (("exponent", 5), ("sign and mantissa", 2)),
    "F16": (("exponent", 5), ("sign and mantissa", 10)),
    "BF16": (("exponent", 8), ("sign and mantissa", 7)),
    "F32": (("exponent", 8), ("sign and mantissa", 7), ("mantissa 1", 8), ("mantissa 0", 8)),
    "F64": (
        ("exponent", 11),
        ("sign and mantissa", 12),
        *((f"mantissa {n}", 8) for n in range(4, -1, -1)),
    ),
}


@dataclass(frozen=True)
class Entry:
    """Sizes in bytes and entropies of one tensor, or of all tensors of a dtype; `fields` are bits a value."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    coding: str
    values: int
    raw: int
    coded: int
    bound: float
    fields: dict[str, float] = field(default_factory=dict)

    @property
    def gap(self) -> float | None:
        """Excess of the coded size over the bound, in per cent; None without a bound."""
        return 100 * (self.coded / self.bound - 1) if self.bound >= 1 else None

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "gap": self.gap}


def inspect(
    source: Path | str,
    *,
    level: str = "runtime",
    base: Path | str | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> Iterator[Entry]:
    """Yield an Entry for each tensor of a checkpoint; a checkpoint that is not packed is coded to find its size.

    Args:
        source: A checkpoint, packed or not.
        level: Level of `pack`, for tensors that are not packed.
        base: Base of a difference.
        threads: Threads of coding.
        progress: Called with the bytes of each tensor.

    Raises:
        FormatError: If the checkpoint is damaged, as in `pack` and `verify`.
    """
    source = path_of(source)
    names = folder.files_to_take(source)
    base_weights = Base.of(source, Limits()) if base is None else Base.open(base)
    shared = shared_in({name: folder.place(source, name) for name in names})
    for name in names:
        found = file_of(folder.place(source, name), name, Limits())
        if found is None:
            continue
        file, packed, is_torch = found
        scope = name if is_torch else ""
        others = Others(packed, base_weights, Limits()) if packed else None
        coded_sizes = packed.coded_sizes if packed else []
        with file.path.open("rb") as reading:
            for number, tensor in enumerate(file.tensors):
                data = tensorfile.read_tensor(reading, tensor)
                if packed and others:
                    record, coded = packed.description.records[number], coded_sizes[number]
                    other = others.for_record(tensor.name, record, scope)
                    raw = record.restore(tensor.name, data, other, threads)
                    dtype, shape, coding = record.dtype, record.shape, record.coding
                else:
                    sharing = taking_part(shared.get(name, {}).get(tensor.name), base_weights, tensor, scope)
                    subject = _subject(tensor, data, sharing, base_weights, scope, threads)
                    coding, payload = encode_in_memory(subject, level)
                    dtype, shape, raw, coded = tensor.dtype, tensor.shape, data, payload.size
                fields, values = field_entropies(raw, tensorfile.layout_of(dtype))
                bound = sum(fields.values()) * values / 8
                yield Entry(tensor.name, dtype, shape, coding.name, values, raw.size, coded, bound, fields)
                if progress:
                    progress(tensor.size)


def _subject(
    tensor: Tensor, data: Bytes, sharing: Sharing | None, base: Base | None, scope: str, threads: int
) -> Subject:
    """Return a tensor with the bytes of those that it shares, or else of its base."""
    if sharing is None:
        return Subject.of(tensor, data, base.tensor(tensor.name, tensor, scope) if base else None, threads)
    with ExitStack() as opened:
        return Subject.of(tensor, data, whole(sharing.content(opened)), threads, sharing.table)


def packed_sizes(source: Path) -> list[dict[str, Any]]:
    """Return name, dtype, shape, coding and sizes of each tensor of a packed checkpoint, without decoding it."""
    sizes = []
    for name in folder.files_to_take(source) if source.is_dir() else [""]:
        found = file_of(folder.place(source, name), name, Limits())
        if found is None or not found[1]:
            continue
        packed = found[1]
        for tensor, record, coded in zip(
            *(packed.file.tensors, packed.description.records, packed.coded_sizes), strict=True
        ):
            about = {"name": tensor.name, "dtype": record.dtype, "shape": record.shape, "coding": record.coding.name}
            sizes.append(about | {"raw": record.size, "coded": coded})
    return sizes


def quantised(source: Path) -> dict[str, Any] | None:
    """Return the summary of a quantised folder on this machine (quant/formats/reading.py), or None if it is not
    quantised.

    Raises PackageError if it is quantised and torch is not installed.
    """
    if remote(source) or not _is_quantised(source / "config.json"):
        return None
    with extras.explained():
        from squeeze.quant.formats.reading import summary

        return summary(source)


def _is_quantised(config: Path) -> bool:
    """Return whether a config.json describes a quantisation other than that of `pack`."""
    try:
        described = read_object(config).get("quantization_config") if config.is_file() else None
    except FormatError:
        return False
    return isinstance(described, dict) and described.get("quant_method") not in METHODS


def totals(entries: list[Entry]) -> list[Entry]:
    """Return the sums by dtype, and the sum of all if there are several dtypes."""
    sums = [_sum(f"all {dtype}", dtype, [e for e in entries if e.dtype == dtype]) for dtype in _dtypes(entries)]
    return sums if len(sums) == 1 else [*sums, _sum("all", "", entries)]


def _dtypes(entries: list[Entry]) -> list[str]:
    return list(dict.fromkeys(entry.dtype for entry in entries))


def _sum(name: str, dtype: str, entries: list[Entry]) -> Entry:
    values = sum(entry.values for entry in entries)
    names = dict.fromkeys(key for entry in entries for key in entry.fields) if dtype else {}
    fields = {
        key: sum(entry.fields.get(key, 0.0) * entry.values for entry in entries) / max(values, 1) for key in names
    }
    sizes = (sum(entry.raw for entry in entries), sum(entry.coded for entry in entries))
    return Entry(name, dtype, (), "", values, *sizes, sum(entry.bound for entry in entries), fields)


def field_entropies(data: Bytes, dtype: str) -> tuple[dict[str, float], int]:
    """Return the zero-order entropy of each field of a tensor in bits a value, and the number of values."""
    bits, _ = DTYPES[dtype]
    values = data.view(f"u{bits // 8}")
    if dtype == "C64":
        dtype = "F32"
    if dtype not in _FIELDS:
        count = bits // 8
        columns = data.reshape(-1, count) if data.size else data.reshape(0, count)
        return {f"byte {n}": _entropy_of(columns[:, n], 8) for n in reversed(range(count))}, values.size
    entropies, shift = {}, bits - 1
    for number, (name, width) in enumerate(_FIELDS[dtype]):
        shift -= width
        counts = np.zeros(1 << (width + (number == 1)), np.int64)
        for start in range(0, values.size, _PIECE):
            piece = values[start : start + _PIECE]
            field_values = (piece >> piece.dtype.type(shift)) & piece.dtype.type((1 << width) - 1)
            if number == 1:
                field_values |= (piece >> piece.dtype.type(bits - 1)) << piece.dtype.type(width)
            counts += np.bincount(field_values.astype(np.int64), minlength=counts.size)
        entropies[name] = _entropy(counts)
    return entropies, values.size


def _entropy_of(values: Any, bits: int) -> float:
    counts = np.zeros(1 << bits, np.int64)
    for start in range(0, values.size, _PIECE):
        counts += np.bincount(values[start : start + _PIECE], minlength=counts.size)
    return _entropy(counts)


def _entropy(counts: Any) -> float:
    present = counts[counts > 0].astype(np.float64)
    if present.size < 2:
        return 0.0
    return float(-(present * np.log2(present / present.sum())).sum() / present.sum())


def table(entries: list[Entry]) -> str:
    """Return the entries and their totals as columns of text."""
    sizes = ("raw", "coded", "ratio", "bound", "gap")
    lines = [_line("tensor", "dtype", "coding", sizes, "entropy by field, bits")]
    lines += [_row(entry) for entry in [*entries, *totals(entries)]]
    return "\n".join(lines)


def _row(entry: Entry) -> str:
    fields = ", ".join(f"{name} {bits:.3f}" for name, bits in entry.fields.items())
    ratio = f"{100 * entry.coded / entry.raw:.2f} %" if entry.raw else "-"
    gap = "-" if entry.gap is None else f"{entry.gap:+.2f} %"
    sizes = (f"{entry.raw}", f"{entry.coded}", ratio, f"{entry.bound:.0f}", gap)
    return _line(escaped(entry.name), entry.dtype, entry.coding, sizes, fields)


def _line(name: str, dtype: str, coding: str, sizes: Sequence[str], fields: str) -> str:
    columns = " ".join(f"{size:>{width}}" for size, width in zip(sizes, _WIDTHS, strict=True))
    return f"{name:<48} {dtype:<8} {coding:<13} {columns}  {fields}".rstrip()
