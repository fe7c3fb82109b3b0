"""Object files of entry points, kept under names that tell what they were made of.

So only kernels whose sources have changed are compiled again, and neither the order in which processes compile nor an
interruption makes a difference to a library.
"""

import hashlib
import struct
from fcntl import LOCK_EX, flock
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llvmlite
import numba

from prebuilt.entries import compile_entry
from prebuilt.signatures import result, signature_hash
from prebuilt.targets import ROOT, TARGETS
from squeeze.numerics.code_cache import source_digest
from squeeze.numerics.compiling import KERNELS

__all__ = ["Row", "entry_point", "is_there", "undefined"]

_SYMBOLS = 2  # the kind of the section with symbols

Row = tuple[str, str, str]  # hash of the signature, entry point, kind of the result


def is_there(target: str, folder: Path, name: str, signature: Any) -> bool:
    """Return whether the object of an entry point has been written."""
    return _kind(target, folder, name, signature).is_file()


def entry_point(target: str, folder: Path, name: str, signature: Any) -> Row:
    """Write the object of an entry point if it is not there, and return its row of the table.

    Args:
        target: name of the processor, for which this process compiles (`Target.environment` and `prepare`).
        folder: where objects are.
        name: of the kernel, module:name.
        signature: numba's types of the arguments.
    """
    kind = _kind(target, folder, name, signature)
    with kind.with_suffix(".lock").open("w") as lock:
        flock(lock, LOCK_EX)  # another process may be making it
        if not kind.is_file():
            import_module(name.partition(":")[0])
            code, returned = compile_entry(KERNELS[name], signature, kind.stem)
            kind.with_suffix(".o").write_bytes(code)
            kind.write_text(result(returned))  # last: the object is whole
    return f"{signature_hash(signature):016x}", kind.stem, kind.read_text()


def undefined(path: Path) -> set[str]:
    """Return the names that an object file, 64-bit ELF, takes from elsewhere."""
    data = path.read_bytes()
    (sections_at,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<2H", data, 0x3A)
    sections = [struct.unpack_from("<2I4Q2I", data, sections_at + size * i) for i in range(count)]
    found = set()
    for _, kind, _, _, start, length, names, _ in sections:
        if kind == _SYMBOLS:
            for name, _, _, section, _, _ in struct.iter_unpack("<I2BH2Q", data[start : start + length]):
                at = sections[names][4] + name
                found |= set() if section else {data[at : data.index(0, at)].decode()}
    return found - {"", "_GLOBAL_OFFSET_TABLE_"}  # the second is the linker's


def _kind(target: str, folder: Path, name: str, signature: Any) -> Path:
    """Return the file with the kind of an entry point's result, which is next to its object."""
    return folder / f"squeeze_{_digest(target, name, signature_hash(signature))}.kind"


def _digest(target: str, name: str, key: int) -> str:
    """Return a digest of what an object is made of: compilers, target, signature, and all sources it depends on."""
    digest = hashlib.sha256(f"{_makers()} {TARGETS[target]} {name} {key}".encode())
    digest.update(_sources(name.partition(":")[0]).encode())
    return digest.hexdigest()[:24]


@cache
def _sources(module: str) -> str:
    spec = find_spec(module)
    assert spec and spec.origin
    return source_digest(Path(spec.origin))


@cache
def _makers() -> str:
    """Return the versions of the compilers, and a digest of what calls them."""
    sources = hashlib.sha256()
    for name in ("entries.py", "signatures.py"):
        sources.update((ROOT / "prebuilt" / name).read_bytes())
    return f"numba {numba.__version__} llvmlite {llvmlite.__version__} {sources.hexdigest()}"
