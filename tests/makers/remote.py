"""An object store in memory that counts requests, and fails when a test says so."""

from typing import Any, ClassVar

from fsspec import AbstractFileSystem
from fsspec.registry import register_implementation
from fsspec.spec import AbstractBufferedFile

PART = 1 << 16  # bytes of a multipart upload's parts


class Store(AbstractFileSystem):
    """Objects by key, with versions, range reads and multipart writes."""

    protocol = "fake"
    root_marker = ""
    objects: ClassVar[dict[str, bytes]] = {}
    versions: ClassVar[dict[str, int]] = {}
    uploads: ClassVar[dict[int, list[bytes]]] = {}  # that are neither completed nor aborted
    requests: ClassVar[list[tuple[Any, ...]]] = []  # their kind, the key, and of "get" begin and end
    failing: ClassVar[dict[str, Exception]] = {}  # what a kind of request raises
    allowed: ClassVar[dict[str, int]] = {}  # how many requests of a kind go well before that
    failures: ClassVar[dict[str, int]] = {}  # how many fail then

    @classmethod
    def reset(cls) -> None:
        for table in (cls.objects, cls.versions, cls.uploads, cls.failing, cls.allowed, cls.failures):
            table.clear()
        cls.requests.clear()

    @classmethod
    def fail(cls, kind: str, error: Exception, after: int = 0, times: int = 1 << 30) -> None:
        cls.failing[kind], cls.allowed[kind], cls.failures[kind] = error, after, times

    @classmethod
    def put(cls, key: str, data: bytes) -> None:
        cls.objects[key] = bytes(data)
        cls.versions[key] = cls.versions.get(key, 0) + 1

    @classmethod
    def request(cls, kind: str, *facts: Any) -> None:
        if kind in cls.failing:
            if cls.allowed[kind] > 0:
                cls.allowed[kind] -= 1
            elif cls.failures[kind] > 0:
                cls.failures[kind] -= 1
                raise cls.failing[kind]
        cls.requests.append((kind, *facts))

    @classmethod
    def ranges(cls) -> list[tuple[int, int]]:
        """Return the ranges that were read."""
        return [request[2:] for request in cls.requests if request[0] == "get"]

    @classmethod
    def fetched(cls, key: str) -> int:
        """Return the number of bytes that were read of an object."""
        return sum(request[3] - request[2] for request in cls.requests if request[:2] == ("get", key))

    def _entry(self, key: str) -> dict[str, Any]:
        return {"name": key, "size": len(self.objects[key]), "type": "file", "ETag": self.versions[key]}

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        key = self._strip_protocol(path)
        self.request("head", key)
        if key in self.objects:
            return self._entry(key)
        if any(other.startswith(f"{key}/") for other in self.objects):
            return {"name": key, "size": 0, "type": "directory"}
        raise FileNotFoundError(key)

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        key = self._strip_protocol(path)
        self.request("list", key)
        prefix, found = f"{key}/" if key else "", {}
        for other in self.objects:
            if other.startswith(prefix):
                name, slash, _ = other.removeprefix(prefix).partition("/")
                folder = {"name": prefix + name, "size": 0, "type": "directory"}
                found[prefix + name] = folder if slash else self._entry(other)
        if not found and key in self.objects:
            found[key] = self._entry(key)
        elif not found:
            raise FileNotFoundError(key)
        return list(found.values()) if detail else list(found)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> "Object":
        return Object(self, path, mode, **{**options, "block_size": PART if "r" not in mode else None})

    def _rm(self, path: str) -> None:
        self.request("delete", path)
        del self.objects[path]


class Finding(Store):
    """A store like gcsfs: prefixes are listed without their last slash, and keys are found by their start."""

    protocol = "finding"

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        found = super().ls(path, True, **options)
        for one in found:
            if one["type"] == "directory":
                one["name"] = one["name"].rstrip("/")
        return found if detail else [one["name"] for one in found]

    def find(self, path: str, maxdepth: Any = None, withdirs: bool = False, detail: bool = False, prefix: str = "",
             **options: Any) -> Any:  # fmt: skip
        key = self._strip_protocol(path)
        self.request("find", key, prefix)
        begin = (f"{key}/" if key else "") + prefix
        found = {name: self._entry(name) for name in self.objects if name.startswith(begin)}
        return found if detail else list(found)


class Object(AbstractBufferedFile):
    fs: Store

    def _fetch_range(self, start: int, end: int) -> bytes:
        self.fs.request("get", self.path, start, end)
        if self.details["ETag"] != self.fs.versions.get(self.path):
            raise OSError(16, "The file has changed")
        return self.fs.objects[self.path][start:end]

    def _initiate_upload(self) -> None:
        self.fs.uploads[id(self)] = []

    def _upload_chunk(self, final: bool = False) -> bool:
        self.buffer.seek(0)
        data = self.buffer.read()
        self.fs.request("put", self.path, len(data))
        self.fs.uploads[id(self)].append(data)
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        if self.mode == "xb" and self.path in self.fs.objects:
            raise FileExistsError(self.path)
        self.fs.request("complete", self.path)
        self.fs.put(self.path, b"".join(self.fs.uploads.pop(id(self))))

    def discard(self) -> None:
        self.fs.uploads.pop(id(self), None)


register_implementation("fake", Store, clobber=True)
register_implementation("finding", Finding, clobber=True)
