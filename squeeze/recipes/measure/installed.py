"""What squeeze takes once it is installed: bytes on the disk, and seconds until a command begins."""

import os
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import squeeze
from squeeze.system.extras import DISTRIBUTION

__all__ = ["core_sizes", "start_up"]

_PACKAGE = Path(squeeze.__file__).parent
_RUNS = 3


def core_sizes(compiled: bool = True) -> dict[str, int]:
    """Bytes on the disk of squeeze and of each distribution that it needs at levels 1 to 9.

    compiled: with compiled Python (.pyc). Extras and language models are left out. Empty where squeeze runs from its
    source, uninstalled.
    """
    sizes: dict[str, int] = {}
    names = [canonicalize_name(DISTRIBUTION)]
    while names:
        name = names.pop()
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        if name not in sizes:
            # the source that an editable installation leads to is in none of its files
            listed = [Path(str(found.locate_file(file))) for file in found.files or ()]
            files = _PACKAGE.rglob("*") if name == DISTRIBUTION else listed
            counted = (path for path in files if path.is_file() and (compiled or path.suffix != ".pyc"))
            sizes[name] = sum(path.stat().st_size for path in counted)
            needed = [Requirement(line) for line in found.requires or ()]
            names += [
                canonicalize_name(one.name) for one in needed if not one.marker or one.marker.evaluate({"extra": ""})
            ]
    return sizes


def start_up() -> float:
    """Seconds of `squeeze --version` as a process of its own, the shortest of three."""
    command = [sys.executable, "-P", "-m", "squeeze", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(_PACKAGE.parent)}
    seconds = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
