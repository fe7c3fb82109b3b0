"""Levels of processors, by the instructions that they have."""

import os
from pathlib import Path

__all__ = ["LEVELS", "is_from_amd", "levels"]

_V2 = "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"
_V3 = f"{_V2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
_V4 = f"{_V3} avx512bw avx512cd avx512dq avx512f avx512vl"
# The level of each library, the best first, and the flags that Linux lists for such a processor.
LEVELS = {
    "v4": f"{_V4} avx512_bitalg avx512_vbmi2 avx512_vnni avx512_vpopcntdq avx512vbmi gfni",
    "v3": _V3,
    "v2": _V2,
}
_SIZE = 1 << 13  # bytes of the list that describe the first processor


_LIST = Path("/proc/cpuinfo")


def levels(listing: Path = _LIST, machine: str = "") -> list[str]:
    """Return the levels of libraries that a processor can run, the best first.

    Args:
        listing: Linux's list of processors.
        machine: Linux's name of the architecture; default: this machine's.
    """
    if (machine or os.uname().machine) != "x86_64":
        return ["v8"]
    flags = set(_first(listing).get("flags", "").split())
    return [level for level, needed in LEVELS.items() if flags.issuperset(needed.split())]


def is_from_amd(listing: Path = _LIST) -> bool:
    """Return whether AMD made the processor, which gathers from memory slowly."""
    return _first(listing).get("vendor_id") == "AuthenticAMD"


def _first(listing: Path) -> dict[str, str]:
    """Return what the list says about the first processor, by name."""
    try:
        with listing.open("rb", buffering=0) as file:
            lines = file.read(_SIZE).decode(errors="replace").partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
