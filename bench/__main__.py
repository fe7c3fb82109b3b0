"""Benchmarks, one a name.

python -m bench                          what there is
python -m bench NAME [OPTIONS]           measure, print, and keep the results in bench/results/NAME.jsonl
python -m bench docs [--check]           write the tables and plots of the docs from the results
python -m bench quick                    a subset in ten minutes; its results are not kept

Of every NAME: --help, --json (one JSON object a row), --results FOLDER (where to keep the results), --no-save.
"""

import argparse
import datetime
import importlib.util
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

from bench import docs, machine, records
from bench.entry import Entry, Row
from bench.registry import ENTRIES

CORPUS = "a folder with text/ and binary/"


def main(arguments: list[str]) -> int:
    name, *rest = arguments or [""]
    if name in ("", "-h", "--help"):
        print(overview())
    elif name == "docs":
        return docs.main(rest)
    elif name == "quick":
        return quick()
    elif name in ENTRIES:
        return measure(name, rest)
    else:
        sys.exit(f"Error: there is no benchmark {name!r}; `python -m bench` lists them")
    return 0


def overview() -> str:
    lines = [str(__doc__)]
    for name, entry in ENTRIES.items():
        lines.append(f"  {name:<20} {entry.measures}")
        lines.append(f"  {'':<20} {' '.join(entry.requirements())}")
    return "\n".join(lines)


def measure(name: str, arguments: list[str]) -> int:
    """Run a benchmark; 1 where nothing was measured."""
    entry = ENTRIES[name]
    options = parser(name, entry).parse_args(arguments)
    if lacks_corpus(entry) and not (getattr(options, "files", None) or getattr(options, "file", None)):
        sys.exit(f"Error: set SQUEEZE_CORPUS to {CORPUS}")
    if "triton" in entry.needs and importlib.util.find_spec("triton") is None:
        sys.exit("Error: triton is not installed")
    common = about(name, entry, arguments)
    count = 0
    for row in entry.rows(name)(options):
        record = {**common, "row": row}
        count += 1
        print(json.dumps(record) if options.json else shown(row), flush=True)
        if entry.saves and entry.keeps(row) and not options.no_save:
            records.save(name, entry, record, options.results)
    return 0 if count or not entry.saves else 1


def lacks_corpus(entry: Entry) -> bool:
    return "a corpus" in entry.needs and not os.environ.get("SQUEEZE_CORPUS")


def parser(name: str, entry: Entry) -> argparse.ArgumentParser:
    found = entry.parser(name)
    found.add_argument("--json", action="store_true", help="print one JSON object a row")
    found.add_argument("--no-save", action="store_true", help="do not keep the results")
    found.add_argument("--results", type=Path, default=records.RESULTS, metavar="FOLDER", help="where to keep them")
    return found


def about(name: str, entry: Entry, arguments: list[str]) -> records.Record:
    """What all records of a run say. Of paths the command keeps names only."""
    kept = [word for word in arguments if word not in ("--json", "--no-save")]
    words = [Path(word).name if word.startswith("/") else word for word in kept]
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": machine.commit(),
        "machine": machine.machine(),
        "versions": machine.versions(entry.rivals),
        "command": shlex.join(["python", "-m", "bench", name, *words]),
    }


def shown(row: Row) -> str:
    return "  ".join(f"{name} {text(value)}" for name, value in row.items() if value is not None)


def text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def quick() -> int:
    """All benchmarks with a quick form, their results in a folder that is thrown away."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, entry in ENTRIES.items():
            if entry.quick is None:
                continue
            print(f"\n{name}: {entry.measures}", flush=True)
            if lacks_corpus(entry):
                print(f"Note: skipped; set SQUEEZE_CORPUS to {CORPUS}")
            else:
                failed |= measure(name, [*shlex.split(entry.quick), "--results", folder])
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
