"""Results: bench/results/NAME.json is one record, of one commit on one machine, with a line a row.

A record holds `date`, `commit`, `machine`, `versions`, `commands` and `rows`. A run at the same commit on the same
machine adds to it, and replaces rows of the same key; any other run begins a new record.
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
_FLAGS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI", "amx_int8": "AMX"}
_PACKAGES = ("numpy", "numba", "torch", "triton")
_SAY_IT_ALONE = ("7z", "lpaq1", "paq8px", "zpaq")  # programs that print their version if they get no arguments


def load(name: str, folder: Path = RESULTS) -> Record | None:
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def rows(name: str, folder: Path = RESULTS) -> list[Row]:
    """Return the rows of a record, none if there is no record."""
    record = load(name, folder)
    return record["rows"] if record else []


def current(name: str, folder: Path = RESULTS) -> list[Row]:
    """Return the rows that were measured at this commit on this machine."""
    record = load(name, folder)
    return record["rows"] if record and is_same_run(record, {"commit": commit(), "machine": machine()}) else []


def save(name: str, measure: Measure, about: Record, row: Row, folder: Path = RESULTS) -> None:
    """Put a row into the record of its commit and machine. about: a record without rows."""
    old = load(name, folder)
    if old and not is_same_run(old, about):
        print(f"Note: {name}: results of {old['commit']} ({old['date']}) are replaced", file=sys.stderr)
        old = None
    kept = {key_of(measure, one): one for one in (old["rows"] if old else [])}
    kept[key_of(measure, row)] = row
    commands = list(dict.fromkeys([*(old["commands"] if old else []), *about["commands"]]))
    write(name, {**about, "commands": commands, "rows": list(kept.values())}, folder)


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
    """The one line below a table: when, on what, at which commit and by which measure it was measured."""
    known = record["machine"]
    cpu = known["cpu"].replace("(R)", "").replace("(TM)", "").split(" @")[0].removesuffix(" Processor")
    words = [] if "gpu" in known else [word for flag, word in _FLAGS.items() if flag in known["flags"]]
    if "AVX-512" in words and "AVX2" in words:
        words.remove("AVX2")
    cores = f"{known['cores']} cores"
    where = f"{cpu} ({', '.join([*words, cores])})" + (f", {known['gpu']}" if "gpu" in known else "")
    return f"*Measured {record['date']}, {where}, squeeze {record['commit']}: `python -m bench {name}`*"


def machine() -> Row:
    """memory: GiB; load: of the machine when the run began."""
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
    """Versions of Python, of the packages that squeeze computes with, and of the rivals that are installed."""
    found = {name: version for name in (*_PACKAGES, *rivals) if (version := _version(name))}
    return {"python": platform.python_version(), **found}


@cache
def commit() -> str:
    """The last commit that changed the package."""
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
    """The first line that a program prints, empty if it is not installed."""
    if not shutil.which(command[0]):
        return ""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return said[0][:80] if said else ""
