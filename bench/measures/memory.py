"""Peak resident memory of `squeeze compress` and `squeeze decompress`, each as a process of its own."""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.entry import Row
from bench.shared.texts import text


def rows(options: argparse.Namespace) -> Iterator[Row]:
    file = text(options.file, "enwik8.1m")
    for level in options.levels.split(","):
        with tempfile.TemporaryDirectory() as folder:
            coded, restored = Path(folder, "coded"), Path(folder, "restored")
            threads = f"-T{options.threads}"
            packing = peak("compress", f"-{level}", threads, "--no-verify", str(file), "-o", str(coded))
            unpacking = peak("decompress", threads, str(coded), "-o", str(restored))
            if restored.read_bytes() != file.read_bytes():
                raise SystemExit("Error: the round trip changed the bytes")
        about = {"file": file.name, "raw": file.stat().st_size, "level": int(level), "threads": options.threads}
        yield {**about, "compress": packing, "decompress": unpacking}


def peak(*arguments: str) -> int:
    """The most bytes that a run of the command held in memory."""
    with subprocess.Popen([sys.executable, "-m", "squeeze", *arguments], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"Error: squeeze {' '.join(arguments)} exited with {process.returncode}")
    return 1024 * usage.ru_maxrss
