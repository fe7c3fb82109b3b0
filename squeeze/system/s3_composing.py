"""S3 objects that are composed of others: the store copies what it already has, and only other bytes are sent.

S3 takes at most 10,000 parts of an object, each of at least 5 MiB except the last. So shorter ranges are read and sent
together with their neighbours.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any, BinaryIO

from squeeze.errors import SqueezeError
from squeeze.system.remote_errors import connection_error, retry
from squeeze.system.remote_file import RemoteFile

__all__ = ["Composed", "composes"]

_LEAST, _PARTS = 5 << 20, 9_000  # the least bytes and the largest number of parts, with a margin below S3's limit
_SENT, _COPIED = 1 << 25, 1 << 28  # preferred bytes of a part that is sent, and of one that is copied
_AT_ONCE = 8  # concurrent copies; the store copies about 100 MB a second each
_PIECE = 1 << 20
_SUMS = "ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256"


def composes(fs: Any, size: int) -> bool:
    """Return whether a filesystem of fsspec is S3 and an object of about `size` bytes is worth composing."""
    return fs.protocol == ("s3", "s3a") and not fs.asynchronous and size >= 2 * _LEAST


class Composed:
    """A new S3 object with the methods of a file that fsspec has open for writing in a transaction.

    It becomes visible when it is committed.

    Args:
        fs: The filesystem of s3fs.
        path: The path in it.
        exclusive: Whether to fail if the object exists.
        size: The approximate size in bytes, or somewhat less.
    """

    def __init__(self, fs: Any, path: str, exclusive: bool, size: int):
        bucket, key, _ = fs.split_path(path)
        self._fs, self._url, self._place = fs, fs.unstrip_protocol(path), {"Bucket": bucket, "Key": key}
        self._condition = {"IfNoneMatch": "*"} if exclusive else {}
        self._least = max(_LEAST, size // _PARTS)
        self._waiting = bytearray()  # bytes to be sent
        self._parts: list[Future[dict[str, Any]]] = []
        self._copies: bool | None = None  # whether the store can copy; None until it was tried
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        self._place["UploadId"] = self._ask("create_multipart_upload")["UploadId"]

    def write(self, data: Any) -> None:
        self._waiting += data
        if len(self._waiting) >= max(_SENT, self._least):
            self._send()

    def copies(self, file: BinaryIO, count: int) -> bool:
        """Return whether `copy` would let the store copy most of these bytes."""
        is_there = isinstance(file, RemoteFile) and bool(file.key)
        return is_there and self._copies is not False and count - self._short >= self._least

    @property
    def _short(self) -> int:
        """The number of bytes that the waiting data lacks to be a part."""
        return max(self._least - len(self._waiting), 0) if self._waiting else 0

    def copy(self, file: BinaryIO, count: int) -> None:
        """Write the next `count` bytes of a file. The store copies them if the file is an object in it."""
        if not self.copies(file, count):
            self._pass(file, count)
            return
        assert isinstance(file, RemoteFile)
        end = file.tell() + count
        self._pass(file, self._short)
        if self._waiting:
            self._send()
        for begin, stop in _ranges(file.tell(), end, max(_COPIED, 2 * self._least)):
            if not self._begin_copy(file, begin, stop):
                file.seek(begin)
                self._pass(file, end - begin)
                return
        file.seek(end)

    def _begin_copy(self, file: RemoteFile, begin: int, end: int) -> bool:
        """Let the store copy a range as a part. Return False if it does not support that, as some S3-compatible stores
        do not.
        """
        part = self._pool.submit(self._copied, len(self._parts) + 1, file, begin, end)
        if self._copies is None:
            self._copies = not isinstance(error := part.exception(), OSError | SqueezeError)
            if error and self._copies:
                raise error
        if self._copies:
            self._parts.append(part)
        return self._copies

    def _copied(self, number: int, file: RemoteFile, begin: int, end: int) -> dict[str, Any]:
        bucket, key, _ = self._fs.split_path(file.key)
        source = {"CopySource": {"Bucket": bucket, "Key": key}, "CopySourceRange": f"bytes={begin}-{end - 1}"}
        same = {"CopySourceIfMatch": file.etag} if file.etag else {}
        answer = self._ask("upload_part_copy", PartNumber=number, **source, **same)
        return _part(number, answer["CopyPartResult"])

    def _pass(self, file: BinaryIO, count: int) -> None:
        while count:
            piece = file.read(min(count, _PIECE))
            if not piece:
                raise connection_error(self._url, "what it is made of has become shorter")
            self.write(piece)
            count -= len(piece)

    def _send(self) -> None:
        number, data = len(self._parts) + 1, bytes(self._waiting)
        self._waiting.clear()
        part = self._pool.submit(lambda: _part(number, self._ask("upload_part", PartNumber=number, Body=data)))
        self._parts.append(part)
        part.result()

    def _ask(self, method: str, **arguments: Any) -> Any:
        return retry(self._url, lambda: self._fs.call_s3(method, **self._place, **arguments))

    def close(self) -> None:
        """Send the rest and wait until all parts are stored."""
        if self._waiting or not self._parts:
            self._send()
        for part in self._parts:
            part.result()
        self._pool.shutdown()

    def commit(self) -> None:
        """Complete the upload. Do it only once: if the answer is lost, the object may exist."""
        parts = {"Parts": [part.result() for part in self._parts]}
        self._fs.call_s3("complete_multipart_upload", **self._place, MultipartUpload=parts, **self._condition)
        self._fs.invalidate_cache(self._url)

    def discard(self) -> None:
        """Abort the upload."""
        self._pool.shutdown(cancel_futures=True)
        with suppress(Exception):
            self._fs.call_s3("abort_multipart_upload", **self._place)


def _part(number: int, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the entry for a part that completing the upload needs."""
    return {"PartNumber": number, **{name: answer[name] for name in ("ETag", *_SUMS) if name in answer}}


def _ranges(begin: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """Split a range into pieces of about the same size, at most `most` bytes each."""
    count = -(-(end - begin) // most)
    bounds = [begin + (end - begin) * number // count for number in range(count + 1)]
    yield from pairwise(bounds)
