"""Records of results: bench/results/NAME.json has one record, of one commit on one machine, with a line per row.

A record has `date`, `commit`, `machine`, `versions`, `commands` and `rows`. A run at the same commit on the same
machine adds rows and replaces those with the same key. Any other run begins a new record.
A line with a field `each NAME` stands for several rows, one for each value in its list, that are otherwise equal.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.measure import Measure
from bench.tables import Row

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results")
FIELDS = ("date", "commit", "machine", "versions", "commands", "rows")
Record = dict[str, Any]
_EACH = "each "
_FLAGS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI", "amx_int8": "AMX"}
_PACKAGES = ("numpy", "numba", "torch", "triton")
_SAY_IT_ALONE = ("7z", "lpaq1", "paq8px", "zpaq")  # programs that print their version if they get no arguments


def load(name: str, folder: Path = RESULTS) -> Record | None:
    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    record: Record = json.loads(path.read_text())
    return record | {"rows": [row for line in record["rows"] for row in separate(line)]}


def rows(name: str, folder: Path = RESULTS) -> list[Row]:
    """Return the rows of a record, an empty list if there is no record."""
    record = load(name, folder)
    return record["rows"] if record else []


def current(name: str, folder: Path = RESULTS) -> list[Row]:
    """Return the rows that were measured at this commit on this machine."""
    record = load(name, folder)
    return record["rows"] if record and is_same_run(record, {"commit": commit(), "machine": machine()}) else []


def save(name: str, measure: Measure, about: Record, row: Row, folder: Path = RESULTS) -> None:
    """Add a row to the record of its commit and machine.

    Args:
        name: name of the benchmark
        measure: the benchmark
        about: a record without rows
        row: the new row
        folder: folder of the records
    """
    old = load(name, folder)
    if old and not is_same_run(old, about):
        print(f"Note: {name}: results of {old['commit']} ({old['date']}) are replaced", file=sys.stderr)
        old = None
    kept = {key_of(measure, one): one for one in (old["rows"] if old else [])}
    kept[key_of(measure, row)] = row
    commands = list(dict.fromkeys([*(old["commands"] if old else []), *about["commands"]]))
    lines = together(list(kept.values()), measure.together)
    write(name, {**about, "commands": commands, "rows": lines}, folder)


def together(rows: list[Row], field: str) -> list[Row]:
    """Return lines for rows, in which rows that differ in one field share a line. An empty field joins none."""
    alike: dict[str, list[Row]] = {}
    for row in rows:
        alike.setdefault(json.dumps({name: value for name, value in row.items() if name != field}), []).append(row)
    lines = ({f"{_EACH}{field}": [row[field] for row in same]} | json.loads(rest) for rest, same in alike.items())
    return list(lines) if field else rows


def separate(line: Row) -> list[Row]:
    """Return the rows that a line stands for."""
    field = next((name for name in line if name.startswith(_EACH)), None)
    if field is None:
        return [line]
    values = line.pop(field)
    return [{field.removeprefix(_EACH): value} | line for value in values]


def is_same_run(one: Record, other: Record) -> bool:
    same = ("cpu", "cores", "gpu")
    machines = [[record["machine"].get(key) for key in same] for record in (one, other)]
    return bool(one["commit"] == other["commit"] and machines[0] == machines[1])


def write(name: str, record: Record, folder: Path = RESULTS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    head = "".join(f'"{key}": {json.dumps(record[key], ensure_ascii=False)},\n' for key in FIELDS[:-1])
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in record["rows"])
    new = folder / f"{name}.new"
    new.write_text(f'{{{head}"rows": [\n{lines}\n]}}\n')
    new.replace(folder / f"{name}.json")


def key_of(measure: Measure, row: Row) -> str:
    return json.dumps([row.get(field) for field in measure.key])


def caption(name: str, record: Record) -> str:
    """Return the line below a table: date, machine, commit and benchmark."""
    known = record["machine"]
    cpu = known["cpu"].replace("(R)", "").replace("(TM)", "").split(" @")[0].removesuffix(" Processor")
    words = [] if "gpu" in known else [word for flag, word in _FLAGS.items() if flag in known["flags"]]
    if "AVX-512" in words and "AVX2" in words:
        words.remove("AVX2")
    cores = "1 core" if known["cores"] == 1 else f"{known['cores']} cores"
    where = f"{cpu} ({', '.join([*words, cores])})" + (f", {known['gpu']}" if "gpu" in known else "")
    return f"*Measured {record['date']}, {where}, squeeze {record['commit']}: `python -m bench {name}`*"


def machine() -> Row:
    """Describe this machine: CPU, cores, instruction sets, memory in GiB, system, load at the start, and GPU."""
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    known = {name.strip(): value.strip() for name, _, value in lines}
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = {
        "cpu": known.get("model name", platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "flags": [flag for flag in (*_FLAGS, "avx_vnni") if flag in known.get("flags", "").split()],
        "memory": round(total / 2**30, 1),
        "os": f"{platform.system()} {platform.release()}",
        "load": round(os.getloadavg()[0], 2),
    }
    gpu = _first_line("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return found | ({"gpu": gpu} if gpu else {})


def versions(rivals: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python, of the packages that squeeze computes with, and of installed rivals."""
    found = {name: version for name in (*_PACKAGES, *rivals) if (version := _version(name))}
    return {"python": platform.python_version(), **found}


@cache
def commit() -> str:
    """Return the last commit that changed the package."""
    return _first_line("git", "-C", str(ROOT), "log", "-1", "--abbrev=8", "--format=%h", "--", "squeeze") or "unknown"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
    said = _first_line(name) if name in _SAY_IT_ALONE else _first_line(name, "--version")
    number = re.search(r"\d+(\.\d+)+", said)
    return number[0] if number else said


def _first_line(*command: str) -> str:
    """Return the first line that a program prints, empty if it is not installed."""
    if not shutil.which(command[0]):
        return ""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return said[0][:80] if said else ""
