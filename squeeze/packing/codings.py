"""The codings of a tensor: `CODINGS` has all by name, `encode` tries those of a level in turn.

No other module knows their names; it asks the class (coding.py). The codings of coders.py code bytes, and those of
wrappers.py transform a tensor first. Payloads are computed in tensors, and docs/format.md specifies them.
"""

from functools import cache

from squeeze.checkpoint.safetensors import Bytes
from squeeze.packing import fields
from squeeze.packing.coders import Archive, Fixed, Rans, Stored, Text, Ulps
from squeeze.packing.coding import Coding, Subject
from squeeze.packing.tensors.content import whole
from squeeze.packing.tensors.float_writer import MemoryWriter, Writer
from squeeze.packing.wrappers import Blocks, Delta, Grid, Relaid, Shared, Zeros

__all__ = ["CODINGS", "LEVELS", "STORED", "encode", "encode_in_memory", "longest_named"]


def _shared(inner: Coding) -> Coding:
    return Shared(f"shared+{inner.name}", inner)


def _delta(inner: Coding) -> Coding:
    return Delta(f"delta+{inner.name}", inner)


def _of_values(inner: Coding) -> tuple[Coding, ...]:
    relaid = (Relaid(f"{kind}+{inner.name}", inner, kind) for kind in fields.KINDS)
    wrappers = Grid(f"grid+{inner.name}", inner), TEXT, Zeros(f"zeros+{inner.name}", inner)
    return *wrappers, Blocks(f"blocks+{inner.name}", inner), *relaid


STORED, FIXED, ULPS, TEXT = Stored("stored"), Fixed("fixed"), Ulps("ulps"), Text("text")
RANS, ARCHIVE = Rans("rans"), Archive("archive")
# The codings that a level tries in turn, for a tensor without and for one with a base.
LEVELS: dict[str, tuple[tuple[Coding, ...], tuple[Coding, ...]]] = {
    "fast": ((FIXED, *_of_values(RANS), RANS), (_delta(RANS), TEXT, RANS)),
    "runtime": ((*_of_values(RANS), RANS), (ULPS, _delta(RANS), TEXT, RANS)),
    "archive": ((*_of_values(ARCHIVE), ARCHIVE), (ULPS, _delta(ARCHIVE), TEXT, ARCHIVE)),
}
# Those of a tensor that shares bytes with others.
SHARED: dict[str, tuple[Coding, ...]] = {
    "fast": (_shared(FIXED), _shared(RANS), _shared(STORED)),
    "runtime": (_shared(RANS), _shared(STORED)),
    "archive": (_shared(ARCHIVE), _shared(STORED)),
}
_TRIED = (tried for level in LEVELS for tried in (*LEVELS[level], SHARED[level]))
CODINGS = {coding.name: coding for tried in _TRIED for coding in (STORED, *tried)}


def encode(subject: Subject, level: str, writer: Writer, is_bundle: bool = False) -> tuple[Coding, int]:
    """Write the payload of the first coding of a level that makes a tensor shorter.

    Args:
        subject: the tensor.
        level: the level of packing.
        writer: where the payload goes.
        is_bundle: whether it is several tensors, end to end.

    Returns:
        The coding and the payload's bytes. If none does, it is STORED with 0 bytes, and nothing is written.
    """
    for coding in _tried(level, subject.form.dtype, subject.base is not None, subject.table is not None):
        if is_bundle and not coding.takes_bundles:
            continue
        if size := coding.encode(subject, writer):
            return coding, size
    return STORED, 0


@cache
def _tried(level: str, dtype: str, with_base: bool, is_shared: bool) -> tuple[Coding, ...]:
    tried = SHARED[level] if is_shared else LEVELS[level][with_base]
    return tuple(coding for coding in tried if coding.takes(dtype))


def encode_in_memory(subject: Subject, level: str, is_bundle: bool = False) -> tuple[Coding, Bytes]:
    """Return the coding and the payload of a tensor; the payload of STORED is the tensor's own array.

    Args are those of `encode`.
    """
    writer = MemoryWriter()
    coding, size = encode(subject, level, writer, is_bundle)
    payload = writer.payload(size)
    return coding, whole(subject.content) if coding.is_stored else payload


@cache
def longest_named(dtype: str, with_base: bool, is_shared: bool = False) -> Coding:
    """Return the coding with the longest name of those possible for this dtype."""
    possible = [
        one
        for one in CODINGS.values()
        if one.takes(dtype) and (with_base or not one.is_difference) and (is_shared or not one.is_shared)
    ]
    return max(possible, key=lambda one: len(one.name))
