"""Results: JSON lines, one record a row, in bench/results/NAME.jsonl.

A record holds `date`, `commit`, `machine`, `versions`, `command` and `row`, the figures. One with `"carried": true` was
measured before results were kept, and its machine is what the docs of that time said of it.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.entry import Entry

RESULTS = Path(__file__).with_name("results")
FIELDS = ("date", "commit", "machine", "versions", "command", "row")
Record = dict[str, Any]


def load(name: str, folder: Path = RESULTS) -> list[Record]:
    """The records of an entry, in the order in which they lie there."""
    path = folder / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def save(name: str, entry: Entry, record: Record, folder: Path = RESULTS) -> None:
    """Put a record in the place of the one whose key it has, or behind all others."""
    folder.mkdir(parents=True, exist_ok=True)
    records = {key_of(entry, one): one for one in load(name, folder)}
    records[key_of(entry, record)] = record
    write(name, records.values(), folder)


def write(name: str, records: Iterable[Record], folder: Path = RESULTS) -> None:
    path = folder / f"{name}.jsonl"
    beside = path.with_suffix(".new")
    beside.write_text("".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records))
    beside.replace(path)


def key_of(entry: Entry, record: Record) -> str:
    return json.dumps([record["row"].get(field) for field in entry.key])
