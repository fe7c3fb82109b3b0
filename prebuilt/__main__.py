"""Make the libraries of machine code in build/machine_code, unless their sources are the same: see README.md."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from prebuilt.targets import RECORDED, ROOT, TARGETS, Target, digest

WORKLOAD = "prebuilt.workload"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m prebuilt", description=__doc__)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build" / "machine_code", help="folder")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "prebuilt", help="folder of what is between")
    parser.add_argument("--workload", default=WORKLOAD, help="module that calls all kernels")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many compile side by side")
    parser.add_argument("--phase", choices=("record", "emit"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for target in map(TARGETS.__getitem__, arguments.targets):
        if arguments.phase:
            _run(target, arguments)
        else:
            _make(target, arguments)


def _make(target: Target, arguments: argparse.Namespace) -> None:
    library, current = arguments.output / f"{target.name}.so", digest(ROOT)
    made_of = library.with_suffix(".sources")
    if made_of.is_file() and made_of.read_text() == current:
        return
    signatures = arguments.work / RECORDED.name / "signatures.sources"
    if not (signatures.is_file() and signatures.read_text() == current):
        _start("record", RECORDED, arguments)
        signatures.write_text(current)
    _start("emit", target, arguments)
    folder = arguments.work / target.name
    command = [*target.compiler(), "-o", library, ROOT / "prebuilt" / "call.c", f"@{folder / 'linked.txt'}", "-lm"]
    subprocess.run(command, check=True)
    table = (folder / "table.txt").read_text()
    library.with_suffix(".txt").write_text(table)
    made_of.write_text(current)
    print(f"{library}: {library.stat().st_size:,} bytes, {len(table.splitlines()) - 1} entry points")


def _start(phase: str, target: Target, arguments: argparse.Namespace) -> None:
    """Run a phase in a process of its own, since numba reads the features of the processor once."""
    (arguments.work / target.name).mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **target.environment(), "SQUEEZE_KERNELS": "compile", "PYTHONPATH": str(ROOT)}
    environment |= {"NUMBA_CACHE_DIR": str(arguments.work / "code"), "SQUEEZE_CACHE": str(arguments.work / "files")}
    options = ["-o", arguments.output, "--work", arguments.work, "--workload", arguments.workload]
    options += ["--processes", str(arguments.processes)]
    command = [sys.executable, "-m", "prebuilt", target.name, "--phase", phase, *options]
    subprocess.run(command, env=environment, cwd=ROOT, check=True)


def _run(target: Target, arguments: argparse.Namespace) -> None:
    recorded = arguments.work / RECORDED.name
    target.prepare()
    if arguments.phase == "record":
        from prebuilt import recording

        recording.record(target, recorded, arguments.workload, arguments.workload == WORKLOAD)
    else:
        from prebuilt import emitting

        signatures = recorded / "signatures.pickle"
        emitting.emit(target, arguments.work / target.name, signatures, arguments.processes)


if __name__ == "__main__":
    main()
