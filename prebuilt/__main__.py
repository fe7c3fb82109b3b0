"""Make the libraries of machine code in build/machine_code, unless their sources are the same: see README.md."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from prebuilt.targets import RECORDED, TARGETS, Target, digest

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m prebuilt", description=__doc__)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build" / "machine_code", help="folder")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "prebuilt", help="folder of what is between")
    parser.add_argument("--workload", default="prebuilt.workload", help="module that calls all kernels")
    parser.add_argument("--phase", choices=("record", "emit"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for target in map(TARGETS.__getitem__, arguments.targets):
        if arguments.phase:
            _run(arguments.phase, target, arguments.work / target.name, arguments.workload)
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
    objects = sorted(folder.glob("*.o"))
    (folder / "objects").write_text("\n".join(map(str, objects)))
    command = [*target.compiler(), "-o", library, ROOT / "prebuilt" / "call.c", f"@{folder / 'objects'}", "-lm"]
    subprocess.run(command, check=True)
    library.with_suffix(".txt").write_bytes((folder / "table.txt").read_bytes())
    made_of.write_text(current)
    print(f"{library}: {library.stat().st_size:,} bytes, {len(objects)} entry points")


def _start(phase: str, target: Target, arguments: argparse.Namespace) -> None:
    """Run a phase in a process of its own, since numba reads the features of the processor once."""
    (arguments.work / target.name).mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **target.environment(), "SQUEEZE_KERNELS": "compile", "PYTHONPATH": str(ROOT)}
    environment |= {"NUMBA_CACHE_DIR": str(arguments.work / "code"), "SQUEEZE_CACHE": str(arguments.work / "files")}
    options = ["-o", arguments.output, "--work", arguments.work, "--workload", arguments.workload]
    command = [sys.executable, "-m", "prebuilt", target.name, "--phase", phase, *options]
    subprocess.run(command, env=environment, cwd=ROOT, check=True)


def _run(phase: str, target: Target, folder: Path, workload: str) -> None:
    if phase == "record":
        from prebuilt import recording

        recording.record(folder / "signatures.pickle", workload)
    else:
        from prebuilt import emitting

        emitting.emit(target, folder, folder.with_name(RECORDED.name) / "signatures.pickle")


if __name__ == "__main__":
    main()
