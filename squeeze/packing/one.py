"""One tensor of a file that is packed: coded, and proved to decode."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace

import xxhash

from squeeze.checkpoint.safetensors import Bytes, Tensor
from squeeze.codecs.tensors.content import Content, InFile
from squeeze.codecs.tensors.float_writer import FileWriter, copy
from squeeze.packing import container, decoding, encoding
from squeeze.packing.at_hand import to_reread
from squeeze.packing.container import Record
from squeeze.packing.unfinished import Run
from squeeze.system.positional import Positional

__all__ = ["Large", "code", "write"]


def code(run: Run, tensor: Tensor, data: Bytes, level: str, verify: bool, threads: int) -> tuple[Record, Bytes]:
    """The record and the payload of a tensor's bytes."""
    other = run.base.tensor(tensor, run.scope) if run.base else None
    coding, payload = container.encode_tensor(data, tensor, level, other, threads, verify)
    return Record.of(tensor, coding, xxhash.xxh3_64_intdigest(data.data)), payload


@dataclass(frozen=True)
class Large:
    """A tensor that is coded in parts, and read several times. checksum: of its bytes, to be asked for at last. opened:
    what is closed when the tensor is written."""

    tensor: Tensor
    content: Content
    checksum: Callable[[], int]
    opened: ExitStack

    @classmethod
    def of(cls, run: Run, tensor: Tensor, follow: Callable[[Content], Future[int]]) -> "Large":
        """follow: begins to count the checksum of a content."""
        opened = ExitStack()
        content = to_reread(run.reading, tensor.begin, tensor.size, opened)
        return cls(tensor, content, follow(content).result, opened)


def write(run: Run, large: Large, level: str, verify: bool, threads: int) -> tuple[Record, int]:
    """Code a large tensor in parts, to where the file being written ends now; its record, and the payload's size."""
    begin, writing = run.writing.tell(), Positional(run.writing)
    tensor, content, other = large.tensor, large.content, None
    with large.opened as opened:
        if run.base:
            other = run.base.content(tensor, tensor.name, run.scope, opened)
        writer = FileWriter(writing, begin)
        coding, size = encoding.write_tensor(content, tensor, level, other, threads, writer)
        if coding == container.STORED:
            copy(content, writer, 0, threads)
        record = Record.of(tensor, coding)
        if verify:
            decoding.prove(InFile(writing, begin, size), record, other, threads, large.checksum)
        return replace(record, checksum=large.checksum()), size
