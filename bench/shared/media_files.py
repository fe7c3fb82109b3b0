"""Bytes of squeeze and of other compressors, for the benchmarks of photos, sounds and arrays."""

import lzma
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import squeeze
from bench.tables import Row


def ours(name: str, data: bytes, levels: Mapping[str, int]) -> Row:
    """Return a row with the bytes of squeeze; every result is decompressed and compared.

    Args:
        name: name in the error of a file that does not come back
        data: content of the file
        levels: level by column
    """
    row: Row = {"raw": len(data)}
    for column, level in levels.items():
        coded = squeeze.compress(data, level=level)
        if squeeze.decompress(coded) != data:
            raise SystemExit(f"Error: {name} did not come back")
        row[column] = len(coded)
    return row


def theirs(data: bytes, more: Mapping[str, Callable[[bytes], int]]) -> Row:
    """Return the bytes of xz, of paq8px if it is installed, and of other compressors by column."""
    row: Row = {"xz": len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))}
    row |= {column: tool(data) for column, tool in more.items()}
    return row | ({"paq8px": _paq8px(data)} if shutil.which("paq8px") else {})


def with_total(rows: Sequence[Row], columns: Iterable[str]) -> list[Row]:
    """Return the rows, and one with the sums of the columns that all rows have."""
    common = [column for column in columns if all(column in row for row in rows)]
    return [*rows, {"file": "all", **{column: sum(row[column] for row in rows) for column in common}}]


def _paq8px(data: bytes) -> int:
    with tempfile.TemporaryDirectory() as folder:
        source, coded = Path(folder, "source"), Path(folder, "coded")
        source.write_bytes(data)
        subprocess.run(["paq8px", "-8", source, coded], check=True, capture_output=True)
        return coded.stat().st_size
