"""Compress a text that comes with Python, restore and compare it, explain it, and print sizes of other compressors."""

import argparse
import lzma
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from bench.measure import Measure, Row

SIZE = 1 << 13  # of the text: -8 codes it three times, by one lane, and compiles its code first


def squeeze(*arguments: str | Path) -> None:
    print("$ squeeze", *(a.name if isinstance(a, Path) else a for a in arguments), flush=True)
    subprocess.run([sys.executable, "-m", "squeeze", *map(str, arguments)], check=True)


def size_with(program: str, *options: str | Path) -> str:
    """Return the number of bytes that a program writes to standard output, or "not installed"."""
    if not shutil.which(program):
        return "not installed"
    return str(len(subprocess.run([program, *options], check=True, capture_output=True).stdout))


def zstd_size(path: Path) -> str:
    if shutil.which("zstd") or sys.version_info < (3, 14):
        return size_with("zstd", "-19", "-q", "-c", path)
    return str(len(import_module("compression.zstd").compress(path.read_bytes(), level=19)))


def zpaq_size(path: Path) -> str:
    if not shutil.which("zpaq"):
        return "not installed"
    archive = path.with_suffix(".zpaq")
    command = ["zpaq", "add", archive.name, path.name, "-m5", "-t1"]
    subprocess.run(command, cwd=path.parent, check=True, capture_output=True)
    return str(archive.stat().st_size)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    topics = Path(sysconfig.get_path("stdlib"), "pydoc_data", "topics.py")
    data = topics.read_bytes()[:SIZE]
    sizes = {"original": str(len(data))}
    page = Path("build", "explain.html")
    page.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        raw, coded, restored = (Path(name, part) for part in ("topics.py", "topics.py.sqz", "restored.py"))
        raw.write_bytes(data)
        for level in ("-1", "-3", "-8"):
            squeeze("compress", level, "-f", raw)
            squeeze("decompress", "-f", coded, "-o", restored)
            if restored.read_bytes() != data:
                sys.exit("Error: the restored file differs from the original")
            sizes[f"squeeze {level}"] = str(coded.stat().st_size)
        squeeze("explain", "-3", "-f", raw, "-o", page)
        sizes["xz -9e"] = str(len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)))
        sizes["zstd -19"] = zstd_size(raw)
        sizes["brotli -q 11"] = size_with("brotli", "-q", "11", "-c", raw)
        sizes["zpaq -m5"] = zpaq_size(raw)
    print(f"\nEvery restored file equals the original. {page} shows where the bits of -3 go.\n")
    for tool, size in sizes.items():
        share = f"{100 * int(size) / len(data):.2f} %" if size.isdigit() else None
        yield {"tool": f"{tool:<12}", "bytes": f"{size:>14}", "share": share}


MEASURE = Measure(rows, time=1)
