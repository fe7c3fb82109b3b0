"""Tensors that are decoded as they are read, a part at a time."""

from collections.abc import Callable

from squeeze.codecs.tensors.content import Content, Difference, InMemory, whole
from squeeze.codecs.tensors.decoded import Decoded, DecodedFixed
from squeeze.codecs.tensors.ulps import DecodedUlps
from squeeze.errors import DamagedError
from squeeze.packing import fields
from squeeze.packing.container import IN_PARTS, decode_tensor, faulty, no_base, other_checksum
from squeeze.packing.description import FIXED, RANS, RELAID, STORED, ULPS, Record
from squeeze.packing.running_hash import checksum_of

__all__ = ["check_content", "content_of", "prove"]


def content_of(payload: Content, record: Record, base: Content | None, threads: int) -> Content:
    """The raw bytes of a tensor, decoded as they are read; at once only those of codings that have no segments. Raises
    DamagedError."""
    if record.coding == STORED:
        return payload
    if record.coding == FIXED:
        return DecodedFixed(payload, record.dtype, record.size)
    if record.coding not in IN_PARTS:
        known = whole(base, threads) if base else None
        return InMemory(decode_tensor(whole(payload, threads), record, known, threads))
    if record.coding in RELAID:
        kind = record.coding.partition("+")[0]
        fields.check(record.shape, kind)
        laid = Decoded(payload, "U8", fields.size_of(record.size, kind))
        return fields.restored_content(laid, record.shape, kind)
    if record.coding == RANS:
        return Decoded(payload, record.dtype, record.size)
    if base is None or base.size != record.size:
        raise no_base()
    if record.coding == ULPS:
        return DecodedUlps(payload, base, record.dtype)
    return Difference(Decoded(payload, record.dtype, record.size), base)


def check_content(content: Content, record: Record, name: str, threads: int) -> None:
    """`check_tensor` of what is read in parts."""
    if checksum_of(content, threads) != record.checksum:
        raise other_checksum(name)


def prove(payload: Content, record: Record, base: Content | None, threads: int, checksum: Callable[[], int]) -> None:
    """Raises VerifyError where a payload, read in parts, does not decode to what has this checksum, which is asked for
    at last."""
    try:
        found = checksum_of(content_of(payload, record, base, threads), threads)
    except DamagedError:
        raise faulty() from None
    if found != checksum():
        raise faulty()
