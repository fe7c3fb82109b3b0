"""Tensors that are decoded as they are read, a part at a time."""

from collections.abc import Callable
from contextlib import ExitStack
from tempfile import TemporaryFile

from squeeze.codecs.tensors.content import Content, Difference, InFile
from squeeze.codecs.tensors.decoded import DecodedFixed
from squeeze.codecs.tensors.float_writer import FileWriter, copy
from squeeze.codecs.tensors.ulps import DecodedUlps
from squeeze.codecs.tensors.zeros import DecodedZeros
from squeeze.errors import DamagedError
from squeeze.packing import fields
from squeeze.packing.container import faulty, no_base, other_checksum, reader
from squeeze.packing.description import ARCHIVE, FIXED, RELAID, STORED, ULPS, ZEROS, Record
from squeeze.packing.running_hash import checksum_of
from squeeze.system.positional import Positional

__all__ = ["check_content", "content_of", "content_to_reread", "prove"]


def content_of(payload: Content, record: Record, base: Content | None, threads: int) -> Content:
    """The raw bytes of a tensor, decoded as they are read. Raises DamagedError."""
    if record.coding == STORED:
        return payload
    if record.coding == FIXED:
        return DecodedFixed(payload, record.layout, record.size)
    read = reader(record, threads)
    if record.coding in RELAID:
        kind = record.coding.partition("+")[0]
        fields.check(record.shape, kind)
        laid = read(payload, "U8", fields.size_of(record.size, kind))
        return fields.restored_content(laid, record.shape, kind)
    if record.coding.startswith(ZEROS):
        return DecodedZeros(payload, record.layout, record.size, read, threads)
    if not record.is_difference:
        return read(payload, record.layout, record.size)
    if base is None or base.size != record.size:
        raise no_base()
    if record.coding == ULPS:
        return DecodedUlps(payload, base, record.layout)
    return Difference(read(payload, record.layout, record.size), base)


def content_to_reread(
    payload: Content, record: Record, base: Content | None, threads: int, opened: ExitStack
) -> Content:
    """The same to be read often: what takes long to decode is decoded once, to a file without a name that is closed
    with `opened`."""
    content = content_of(payload, record, base, threads)
    if not record.coding.endswith(ARCHIVE):
        return content
    spooled = TemporaryFile()  # noqa: SIM115
    file = Positional(opened.enter_context(spooled))
    copy(content, FileWriter(file, 0), 0, threads)
    return InFile(file, 0, content.size)


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
