"""A store of any number of objects, which exist only in listings and cannot be read."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from fsspec.asyn import AsyncFileSystem
from fsspec.registry import register_implementation

_WHEN = datetime(2026, 1, 1, tzinfo=UTC)


class Generated(AsyncFileSystem):
    """`generated://corpus-N`: one prefix with N objects, listed in pages as S3 lists them."""

    protocol = "generated"
    root_marker = ""
    listed = 0

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = self._strip_protocol(path).partition("/")
        return bucket, key, None

    async def _info(self, path: str, **options: Any) -> dict[str, Any]:
        bucket, key, _ = self.split_path(path)
        if key:
            raise FileNotFoundError(path)
        return {"name": bucket, "size": 0, "type": "directory"}

    async def _iterdir(self, bucket: str, delimiter: str, prefix: str) -> AsyncIterator[dict[str, Any]]:
        for number in range(int(bucket.rpartition("-")[2])):
            type(self).listed += 1
            name = f"{bucket}/2026/part-{number:010d}.jsonl"
            tag = f'"{number:032x}"'
            yield {"name": name, "size": 2000, "type": "file", "ETag": tag, "LastModified": _WHEN, "Key": name}


register_implementation("generated", Generated, clobber=True)
