"""Make the libraries of machine code in build/machine_code, unless their sources are the same: see README.md."""

import argparse
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from prebuilt import kernels
from prebuilt.targets import CALL, RECORDED, RECORDING, ROOT, TARGETS, Target, digest

WORKLOAD = "prebuilt.workload"
SIGNATURES = "signatures.pickle"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m prebuilt", description=__doc__)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build" / "machine_code", help="folder")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "prebuilt", help="folder of what is between")
    parser.add_argument("--workload", default=WORKLOAD, help="module that calls all kernels")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many compile side by side")
    parser.add_argument("--phase", choices=("record", "emit"), help=argparse.SUPPRESS)
    parser.add_argument("--part", help=argparse.SUPPRESS)
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
    _record(arguments)
    if died := _start("emit", target, arguments):
        raise SystemExit(f"{target.name}: the process that compiles {died}")
    folder = arguments.work / target.name
    _link(target, library, f"@{folder / 'linked.txt'}", "-lm")
    table = (folder / "table.txt").read_text()
    library.with_suffix(".txt").write_text(table)
    made_of.write_text(current)
    print(f"{library}: {library.stat().st_size:,} bytes, {len(table.splitlines()) - 1} entry points")


def _link(target: Target, library: Path, *objects: str) -> None:
    """Make a library of call.c and objects."""
    subprocess.run([*target.compiler(), "-o", library, ROOT / "prebuilt" / "call.c", *objects], check=True)


def _record(arguments: argparse.Namespace) -> None:
    """Run the parts of the workload that these sources have not finished, and write the signatures of all.

    If a part dies, the others are finished first. The exit names the kernels in which it died.
    """
    folder, current = arguments.work / RECORDED.name, digest(ROOT, RECORDING)
    folder.mkdir(parents=True, exist_ok=True)
    parts = list(import_module(arguments.workload).PARTS)

    def run(part: str) -> str:
        """Run a part if it is not finished, and return why it was not finished this time either, or ""."""
        made_of = folder / f"{part}.sources"
        if made_of.is_file() and made_of.read_text() == current:
            return ""
        if died := _start("record", RECORDED, arguments, part):
            inside = ", ".join(kernels.running(folder / f"{part}.calls")) or "no kernel"
            return f"part {part} of {arguments.workload} {died}, in {inside}"
        made_of.write_text(current)
        return ""

    _link(RECORDED, folder / CALL)
    with ThreadPoolExecutor(arguments.processes) as pool:
        failures = list(filter(None, pool.map(run, parts)))
    if failures:
        raise SystemExit("\n".join(failures))
    found = {row[:2]: row for part in parts for row in pickle.loads((folder / f"{part}.pickle").read_bytes())}
    if arguments.workload == WORKLOAD:
        kernels.check({name for name, _ in found}, WORKLOAD)
    (folder / SIGNATURES).write_bytes(pickle.dumps([(name, row[2]) for (name, _), row in sorted(found.items())]))


def _start(phase: str, target: Target, arguments: argparse.Namespace, part: str = "") -> str:
    """Run a phase in a process of its own, since numba reads the features of the processor once.

    Returns how it ended, in words, or "".
    """
    (arguments.work / target.name).mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **target.environment(), "SQUEEZE_KERNELS": "compile", "PYTHONPATH": str(ROOT)}
    environment |= {"NUMBA_CACHE_DIR": str(arguments.work / "code"), "SQUEEZE_CACHE": str(arguments.work / "files")}
    options = ["-o", arguments.output, "--work", arguments.work, "--workload", arguments.workload, "--part", part]
    options += ["--processes", str(arguments.processes)]
    command = [sys.executable, "-m", "prebuilt", target.name, "--phase", phase, *options]
    code = subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode
    if code < 0:
        return f"died of {signal.Signals(-code).name}"
    return f"ended with status {code}" if code else ""


def _run(target: Target, arguments: argparse.Namespace) -> None:
    recorded = arguments.work / RECORDED.name
    target.prepare()
    if arguments.phase == "record":
        from prebuilt import recording

        recording.record(target, recorded, arguments.workload, arguments.part)
    else:
        from prebuilt import emitting

        emitting.emit(target, arguments.work / target.name, recorded / SIGNATURES, arguments.processes)


if __name__ == "__main__":
    main()
