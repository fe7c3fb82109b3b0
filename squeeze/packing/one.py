"""One tensor of a file that is packed: coded, and proved to decode."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import xxhash

from squeeze.checkpoint.safetensors import Bytes, Tensor
from squeeze.codecs.tensors.content import InFile
from squeeze.codecs.tensors.float_writer import FileWriter, copy
from squeeze.packing import container, decoding, encoding
from squeeze.packing.container import Record
from squeeze.packing.unfinished import Run
from squeeze.system.positional import Positional

__all__ = ["code", "write"]


def code(run: Run, tensor: Tensor, data: Bytes, level: str, verify: bool, threads: int) -> tuple[Record, Bytes]:
    """The record and the payload of a tensor's bytes."""
    other = run.base.tensor(tensor, run.scope) if run.base else None
    coding, payload = container.encode_tensor(data, tensor, level, other, threads, verify)
    return Record(tensor.dtype, tensor.shape, coding, xxhash.xxh3_64_intdigest(data.data)), payload


def write(
    run: Run, tensor: Tensor, checksum: Callable[[], int], level: str, verify: bool, threads: int
) -> tuple[Record, int]:
    """Code a large tensor in parts, to where the file being written ends now; its record, and the payload's size."""
    begin, writing = run.writing.tell(), Positional(run.writing)
    content, other = run.content(tensor), None
    with ExitStack() as opened:
        if run.base:
            other = run.base.content(tensor, tensor.name, run.scope, opened)
        writer = FileWriter(writing, begin)
        coding, size = encoding.write_tensor(content, tensor, level, other, threads, writer)
        if coding == container.STORED:
            copy(content, writer, 0, threads)
        record = Record(tensor.dtype, tensor.shape, coding, 0)
        if verify:
            decoding.prove(InFile(writing, begin, size), record, other, threads, checksum)
    return replace(record, checksum=checksum()), size
