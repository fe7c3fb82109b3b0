"""`python -m tests.fuzz [FORMAT...]`: mutate files of every format and print what came of it. See `--help`."""

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from tests.fuzz import running
from tests.fuzz.report import table, write_docs
from tests.fuzz.running import Result


def main() -> int:
    options = _options()
    if any(os.environ.get(name) != value for name, value in running.environment().items()):
        os.environ.update(running.environment())
        os.execv(sys.executable, [sys.executable, "-P", "-m", "tests.fuzz", *sys.argv[1:]])
    from tests.fuzz.formats import NAMES

    unknown = sorted(set(options.formats) - set(NAMES))
    if unknown:
        raise SystemExit(f"Error: {unknown[0]} is unknown: choose from {', '.join(NAMES)}")
    names = options.formats or NAMES
    if options.case is not None:
        return _one(names[0], options.seed, options.case)
    print(
        f"seed {options.seed}; a case again: python -m tests.fuzz FORMAT --seed {options.seed} --case NUMBER",
        flush=True,
    )
    results = []
    for name in names:
        results.append(_many(name, options, len(names)))
        print(table(results[-1:], header=len(results) == 1), flush=True)
        _print_faults(results[-1])
        if options.write_docs:
            write_docs(results[-1:])
    return 1 if any(result.faults for result in results) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Mutate files, and read them.")
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help="which; without, all of them")
    parser.add_argument("--cases", type=int, default=None, help="mutations of each format (1000, without --minutes)")
    parser.add_argument("--minutes", type=float, default=None, help="or as many as there is time for, in all")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations (0)")
    parser.add_argument("--case", type=int, default=None, help="only this one, with what came of it")
    parser.add_argument("--write-docs", action="store_true", help="write each row into the table of docs/security.md")
    return parser.parse_args()


def _many(name: str, options: argparse.Namespace, formats: int) -> Result:
    from tests.fuzz.formats import make

    with tempfile.TemporaryDirectory(prefix="squeeze-fuzz-") as samples:
        os.environ["SQUEEZE_CACHE"] = str(Path(samples, "cache"))
        form = make(name, Path(samples))
        until = time.monotonic() + options.minutes * 60 / formats if options.minutes else float("inf")
        cases = options.cases or (1 << 40 if options.minutes else 1_000)
        return running.run(form, range(cases), options.seed, until)


def _one(name: str, seed: int, number: int) -> int:
    """A single case, here; what it raises is shown whole."""
    from tests.fuzz import judging
    from tests.fuzz.formats import make

    with tempfile.TemporaryDirectory(prefix="squeeze-fuzz-") as samples, tempfile.TemporaryDirectory() as box:
        os.environ["SQUEEZE_CACHE"] = str(Path(samples, "cache"))
        form = make(name, Path(samples))
        (Path(box) / "inside").mkdir()
        os.environ["SQUEEZE_CACHE"] = f"{box}/inside/cache"
        found = judging.judge(form, seed, number, Path(box))
        print(found.kind, found.where, found.detail, sep="\n")
        if found.kind in judging.FAULTS:
            (Path(box) / "again").mkdir()
            print(form.read(judging.case(form, seed, number), Path(box) / "again"))
    return int(found.kind in judging.FAULTS)


def _print_faults(result: Result) -> None:
    """Grouped by where they come from, with the first cases of each."""
    groups = defaultdict(list)
    for number, verdict in result.faults:
        groups[verdict.kind, verdict.where].append((number, verdict.detail))
    for (kind, where), found in sorted(groups.items(), key=lambda group: -len(group[1])):
        numbers = ", ".join(str(number) for number, _ in found[:4])
        print(f"\n{result.name}: {kind}, {len(found)} times: {where}\n  cases {numbers}\n  {found[0][1][:200]}")


if __name__ == "__main__":
    sys.exit(main())
