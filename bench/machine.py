"""What a result was measured on: the processor, memory and system, and the versions of what was at work."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

_FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
_PACKAGES = ("numpy", "numba", "torch", "triton")
_SAY_IT_ALONE = ("7z", "lpaq1", "paq8px", "zpaq")  # programs that print what they are when they are given nothing
_ROOT = Path(__file__).parents[1]


def machine() -> dict[str, Any]:
    """cores: those that this process may use; memory: GiB; load: of the machine, as the run began."""
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    known = {name.strip(): value.strip() for name, _, value in lines}
    flags = known.get("flags", "").split()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = {
        "cpu": known.get("model name", platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "flags": [flag for flag in _FLAGS if flag in flags],
        "memory": round(total / 2**30, 1),
        "os": f"{platform.system()} {platform.release()}",
        "load": round(os.getloadavg()[0], 2),
    }
    return found | (
        {"gpu": gpu} if (gpu := _first_line("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")) else {}
    )


def versions(rivals: Iterable[str]) -> dict[str, str]:
    """Of python, of the packages that squeeze counts with, and of rivals: programs or packages, where installed."""
    found = {"python": platform.python_version()}
    for name in (*_PACKAGES, *rivals):
        if version := _version(name):
            found[name] = version
    return found


@cache
def commit() -> str:
    """The last one that changed the package, where this is first asked: what is measured."""
    return _first_line("git", "-C", str(_ROOT), "log", "-1", "--abbrev=8", "--format=%h", "--", "squeeze") or "unknown"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
    said = _first_line(name) if name in _SAY_IT_ALONE else _first_line(name, "--version")
    number = re.search(r"\d+(\.\d+)+", said)
    return number[0] if number else said


def _first_line(*command: str) -> str:
    """What a program says first; empty where it is not installed."""
    if not shutil.which(command[0]):
        return ""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return said[0][:80] if said else ""
