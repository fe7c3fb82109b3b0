"""Run benchmarks, each by its name.

python -m bench                 list them
python -m bench NAME [OPTIONS]  measure, print, and keep the rows in bench/results/NAME.json
python -m bench docs [--check]  write the tables and plots of the docs from the results

Every NAME has --help, --json (one JSON object per row), --results FOLDER and --no-save.
"""

import argparse
import datetime
import importlib.util
import json
import os
import shlex
import sys
from pathlib import Path

from bench import docs, records
from bench.measure import MEASURES, Measure, Row, load


def main(arguments: list[str]) -> int:
    name, *rest = arguments or [""]
    if name in ("", "-h", "--help"):
        print("\n".join([str(__doc__), *(f"  {name:<14} {summary}" for name, summary in MEASURES.items())]))
    elif name == "docs":
        return docs.main(rest)
    elif name in MEASURES:
        return run(name, load(name), rest)
    else:
        sys.exit(f"Error: there is no benchmark {name!r}; `python -m bench` lists them")
    return 0


def run(name: str, measure: Measure, arguments: list[str]) -> int:
    """Measure, print and keep rows. Return 1 if nothing was measured, else 0."""
    options = parser(name, measure).parse_args(arguments)
    if "a corpus" in measure.needs and not os.environ.get("SQUEEZE_CORPUS") and not getattr(options, "files", None):
        sys.exit("Error: set SQUEEZE_CORPUS to a folder with text/ and binary/")
    if "triton" in measure.needs and importlib.util.find_spec("triton") is None:
        sys.exit("Error: triton is not installed")
    about, count = about_run(name, measure, arguments), 0
    for row in measure.rows(options):
        count += 1
        print(json.dumps({**about, "row": row}) if options.json else format_row(row), flush=True)
        if measure.key and measure.keeps(row) and not options.no_save:
            records.save(name, measure, about, row, options.results)
    return 0 if count or not measure.key else 1


def parser(name: str, measure: Measure) -> argparse.ArgumentParser:
    made = measure.parser(name)
    made.add_argument("--json", action="store_true", help="print one JSON object per row")
    made.add_argument("--no-save", action="store_true", help="discard the results")
    made.add_argument("--results", type=Path, default=records.RESULTS, metavar="FOLDER", help="folder of the records")
    return made


def about_run(name: str, measure: Measure, arguments: list[str]) -> records.Record:
    """Return a record without rows. Its command contains only the names of absolute paths."""
    kept = [word for word in arguments if word not in ("--json", "--no-save")]
    words = [Path(word).name if word.startswith("/") else word for word in kept]
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": records.commit(),
        "machine": records.machine(),
        "versions": records.versions(measure.rivals),
        "commands": [shlex.join(["python", "-m", "bench", name, *words])],
    }


def format_row(row: Row) -> str:
    return "  ".join(f"{name} {format_value(value)}" for name, value in row.items() if value is not None)


def format_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
