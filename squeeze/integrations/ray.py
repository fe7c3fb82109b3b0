"""Ray Data on .sqz files: a source that reads them in parts of some blocks, and a sink that writes one file for each
task.

Paths may be URLs. On a cluster they must name the same files on all machines. `rows` says what a row is:

| `rows` | file | row |
|---|---|---|
| `lines` | a text in UTF-8 | `text`: a line |
| `json` | JSON lines | the keys of an object |
| `samples` | a shard (`squeeze compress --shards`) | `__key__`, and each file's bytes by its ending, as in WebDataset |
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, time
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, cast

from squeeze.codecs.shards.tar import Entry, sample_key
from squeeze.codecs.shards.write import write_shard
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.members import Member
from squeeze.codecs.stream.reader import Reader, open_reader as open_stream, read_places
from squeeze.errors import FormatError, OptionError, SqueezeError
from squeeze.system import files
from squeeze.system.extras import explained
from squeeze.system.storage import path_of, remote

with explained():
    import pandas  # noqa: F401 -- which ray.data wants, and does not name
    import pyarrow
    import ray.data
    from ray.data.block import BlockAccessor, BlockMetadata
    from ray.data.datasource import Datasink, Datasource, ReadTask

__all__ = ["SqzDatasink", "SqzDatasource", "read_sqz", "write_sqz"]

ROWS = {"lines": ".txt", "json": ".jsonl", "samples": ".tar"}  # and how files end, before .sqz
_LEAST = 4  # blocks of a part: its last row may take the next one, too
_TABLE = 1 << 25  # bytes of rows that are handed on at a time
_KEY = "__key__"


def read_sqz(
    paths: str | os.PathLike[str] | list[str | os.PathLike[str]],
    *,
    rows: str = "lines",
    parts: int | None = None,
    **options: Any,
) -> "ray.data.Dataset":
    """Read .sqz files as a Ray dataset.

    A task reads some blocks of one file.

    Args:
        paths: Files, folders, or URLs of either.
        rows: Kind of row: "lines", "json" or "samples".
        parts: Approximate number of tasks; None leaves it to Ray.
        options: Options of `squeeze.open`.

    Raises:
        FormatError: If a file is not a .sqz file, or rows are samples and it has no index of members.
        OptionError: If the kind of row does not exist.
    """
    source = SqzDatasource(paths, rows, options)
    found: ray.data.Dataset = ray.data.read_datasource(source, override_num_blocks=parts)
    return found


def write_sqz(
    dataset: "ray.data.Dataset", folder: str | os.PathLike[str], *, rows: str = "json", **options: Any
) -> None:
    """Write a dataset as part-000000.jsonl.sqz and so on, one file for each writing task.

    Each file appears complete or not at all.

    Args:
        dataset: A Ray dataset.
        folder: Folder or URL.
        rows: Kind of row, as for read_sqz.
        options: Options of `squeeze.compress_stream`.

    Raises:
        SqueezeError: If the folder is not empty.
        OptionError: If the kind of row does not exist.
    """
    dataset.write_datasink(SqzDatasink(folder, rows, options))


@dataclass(frozen=True)
class _Part:
    """A range of a file's raw bytes that begins and ends with blocks."""

    path: Path
    begin: int
    end: int


def _checked(rows: str) -> str:
    if rows not in ROWS:
        raise OptionError(f"expected rows of {', '.join(ROWS)}, got {rows!r}")
    return rows


class SqzDatasource(Datasource):
    """The Ray datasource behind `read_sqz`."""

    def __init__(self, paths: Any, rows: str, options: dict[str, Any]):
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows, self._options = _checked(rows), options
        named = [paths] if isinstance(paths, str | os.PathLike) else paths
        self._blocks = {path: _starts(path) for name in named for path in _files(path_of(name), ROWS[rows])}

    def get_name(self) -> str:
        return "Sqz"

    def estimate_inmemory_data_size(self) -> int:
        return sum(starts[-1] for starts in self._blocks.values())

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        size = max(self.estimate_inmemory_data_size() // max(parallelism, 1), 1)
        tasks = []
        for part in (part for path, starts in self._blocks.items() for part in _parts(path, starts, size)):
            about = BlockMetadata(None, part.end - part.begin, None, input_files=(str(part.path),))
            read = partial(_tables, part, self._rows, self._options)
            tasks.append(ReadTask(read, about, per_task_row_limit=per_task_row_limit))
        return tasks


def _files(path: Path, ending: str) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = (one for one in path.rglob("*") if one.name.endswith(ending + files.SUFFIX) and one.is_file())
    if not (listed := sorted(found)):
        raise SqueezeError(f"{path}: holds no files that end in {ending}{files.SUFFIX}")
    return listed


def _starts(path: Path) -> list[int]:
    """Return the raw offsets at which blocks begin, and the end of the last."""
    with path.open("rb") as file:
        try:
            places = read_places(file)
        except FormatError as error:
            raise type(error)(f"{path}: {error}") from None
    ends = [place.raw_offset + place.raw_length for place in places if place.raw_length]
    return [0, *ends]


def _parts(path: Path, starts: list[int], size: int) -> Iterator[_Part]:
    """Group whole blocks into parts of about `size` raw bytes."""
    first = 0
    for last, end in enumerate(starts):
        enough = last - first >= _LEAST and end - starts[first] >= size
        if last > first and (enough or last == len(starts) - 1):
            yield _Part(path, starts[first], end)
            first = last


def _tables(part: _Part, rows: str, options: dict[str, Any]) -> Iterator[pyarrow.Table]:
    read = {"lines": _lines, "json": _objects, "samples": _samples}[rows]
    try:
        with open_stream(part.path, **options) as file:
            yield from read(file, part)
    except (SqueezeError, pyarrow.ArrowException, ValueError, OverflowError, RecursionError) as error:
        raise SqueezeError(f"{part.path}: {' '.join(str(error).split())}") from None


def _chunks(file: BinaryIO, part: _Part) -> Iterator[list[bytes]]:
    """Yield the lines that begin in a part, so that each line belongs to one part.

    The first line of a part other than the first began before it. No part reads the block before it.
    """
    file.seek(part.begin)
    position = part.begin + (len(file.readline()) if part.begin else 0)
    lines: list[bytes] = []
    size = 0
    while position <= part.end and (line := file.readline()):
        lines.append(line)
        position, size = position + len(line), size + len(line)
        if size > _TABLE:
            yield lines
            lines, size = [], 0
    if lines:
        yield lines


def _lines(file: Reader, part: _Part) -> Iterator[pyarrow.Table]:
    for lines in _chunks(file, part):
        yield pyarrow.table({"text": [line.decode().removesuffix("\n") for line in lines]})


def _objects(file: Reader, part: _Part) -> Iterator[pyarrow.Table]:
    for lines in _chunks(file, part):
        if found := [json.loads(line) for line in lines if line.strip()]:
            if not all(isinstance(row, dict) for row in found):
                raise SqueezeError("a line is not a JSON object")
            yield _table(found)


def _samples(file: Reader, part: _Part) -> Iterator[pyarrow.Table]:
    """Yield the samples whose first member lies in the part."""
    rows: list[dict[str, object]] = []
    size = 0
    for key, group in groupby(file.members().values(), key=lambda member: sample_key(member.name)):
        members = list(group)
        if not part.begin <= members[0].offset < part.end:
            continue
        rows.append(_sample(file, key, members))
        size += sum(member.size for member in members)
        if size > _TABLE:
            yield _table(rows)
            rows, size = [], 0
    if rows:
        yield _table(rows)


def _sample(file: Reader, key: str, members: list[Member]) -> dict[str, object]:
    found: dict[str, object] = {_KEY: key.removesuffix(".")}
    for member in members:
        with file.member(member.name) as content:
            found[member.name.removeprefix(key) or "bin"] = content.read()
    return found


def _table(rows: list[dict[str, object]]) -> pyarrow.Table:
    names = dict.fromkeys(name for row in rows for name in row)  # in which the first row may lack some
    return pyarrow.table({name: [row.get(name) for row in rows] for name in names})


class SqzDatasink(Datasink[None]):
    """The Ray datasink behind `write_sqz`."""

    def __init__(self, folder: str | os.PathLike[str], rows: str, options: dict[str, Any]):
        self._folder, self._rows, self._options = path_of(folder), _checked(rows), options

    def on_write_start(self, schema: Any = None) -> None:
        place = remote(self._folder)
        if place is None:
            self._folder.mkdir(parents=True, exist_ok=True)
        if next(iter(place.descendants() if place else self._folder.iterdir()), None):
            raise SqueezeError(f"{self._folder}: is not empty")

    def write(self, blocks: Iterable[Any], ctx: Any) -> None:
        """Write one task's rows to one file, which replaces that of an earlier attempt."""
        target = self._folder / f"part-{ctx.task_idx:06d}{ROWS[self._rows]}{files.SUFFIX}"
        rows = (row for block in blocks for row in BlockAccessor.for_block(block).to_arrow().to_pylist())
        if self._rows == "samples":
            write_shard(target, (entry for row in rows for entry in _entries(row)), True, **self._options)
            return
        line = _json_line if self._rows == "json" else _text_line
        with files.replacing(target) as sink:
            compress_stream(cast(BinaryIO, _Pieces(map(line, rows))), sink, **self._options)


def _json_line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, default=_as_json).encode() + b"\n"


def _as_json(value: object) -> str:
    """Return ISO 8601 text for a time; raises SqueezeError for other values that JSON cannot hold."""
    if isinstance(value, date | time):
        return value.isoformat()
    raise SqueezeError(f"a row holds a value of type {type(value).__name__}, which JSON cannot hold: convert it")


def _text_line(row: dict[str, Any]) -> bytes:
    text = str(row["text"])
    if "\n" in text:
        raise SqueezeError("a text holds a line feed, and would be two rows: write rows of json")
    return text.encode() + b"\n"


def _entries(row: dict[str, Any]) -> Iterator[Entry]:
    for name, data in row.items():
        if name != _KEY and data is not None:
            content = data.encode() if isinstance(data, str) else bytes(data)
            yield Entry(f"{row[_KEY]}.{name}", len(content), [content])


class _Pieces:
    """A readable file of pieces that are generated on demand."""

    def __init__(self, pieces: Iterator[bytes]):
        self._pieces, self._rest = pieces, b""

    def seekable(self) -> bool:
        return False

    def read(self, size: int) -> bytes:
        out = bytearray(self._rest)
        while len(out) < size and (piece := next(self._pieces, b"")):
            out += piece
        self._rest = bytes(out[size:])
        return bytes(out[:size])
