"""A fake disk on which every call can fail: a layer between squeeze and the system for tests of faults."""

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors
from safetensors.torch import save_file

from squeeze.checkpoint import parts
from squeeze.system import moving

Strike = Callable[[int, str], BaseException | None]  # the number of a call and its kind: what it raises
_ONE_PATH = {"unlink": "delete", "remove": "delete", "rmdir": "delete", "mkdir": "make", "truncate": "write"}
_TWO_PATHS = {"rename": "rename", "replace": "rename", "link": "rename"}
_HANDLES = {"fsync": "sync", "ftruncate": "write", "write": "write", "pwrite": "write", "sendfile": "write"}
_GROWING = ("write", "make", "open")


def broken_at(n: int) -> Strike:
    """Raise one error of the device."""
    return lambda call, kind: OSError(errno.EIO, os.strerror(errno.EIO)) if call == n else None


def full_from(n: int) -> Strike:
    """Fail every later call that changes the disk."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return lambda call, kind: full if call >= n and kind in _GROWING else None


def interrupted_at(n: int) -> Strike:
    return lambda call, kind: KeyboardInterrupt() if call == n else None


class Disk:
    """Counts the calls that change what is below `root`, and lets `strike` decide about each before it is made; half of
    what a failing call would write is written."""

    def __init__(self, root: Path, strike: Strike):
        self.root, self.strike = os.path.realpath(root), strike
        self.calls, self.struck = 0, ""

    def touch(self, kind: str, file: Any, folder: int | None = None) -> None:
        path = self._path(file, folder)
        if not path.startswith(self.root):
            return
        self.calls += 1
        error = self.strike(self.calls, kind)
        if error is not None:
            self.struck = self.struck or f"call {self.calls}, {kind} {path}"
            raise error

    def _path(self, file: Any, folder: int | None) -> str:
        if isinstance(file, int):
            return str(Path(f"/proc/self/fd/{file}").readlink())
        base = Path("." if folder is None else f"/proc/self/fd/{folder}")
        return str(base.resolve() / os.fsdecode(file))

    @contextmanager
    def installed(self) -> Iterator["Disk"]:
        with pytest.MonkeyPatch.context() as patch:
            for name, kind in _ONE_PATH.items():
                patch.setattr(os, name, self._watched(getattr(os, name), kind, 0))
            for name, kind in _TWO_PATHS.items():
                patch.setattr(os, name, self._watched(getattr(os, name), kind, 1))
            for name, kind in _HANDLES.items():
                patch.setattr(os, name, self._watched(getattr(os, name), kind, 0))
            patch.setattr(moving, "rename", self._watched(moving.rename, "rename", 1))
            patch.setattr(parts, "save_file", self._save_file)
            patch.setattr(os, "open", self._opener(os.open))
            for module in (io, builtins):
                patch.setattr(module, "open", self._file_opener(io.open))
            yield self

    def _watched(self, real: Callable[..., Any], kind: str, place: int) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.touch(kind, args[place], options.get("dir_fd"))
            return real(*args, **options)

        return call

    def _opener(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.touch("open", path, options.get("dir_fd"))
            return real(path, flags, *rest, **options)

        return call

    def _file_opener(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if not set(mode) & set("wxa+") or options.get("opener"):
                return real(file, mode, *args, **options)
            if not isinstance(file, int):
                self.touch("open", file)
            raw = _WatchedFile(self, file, mode.translate({ord("b"): None, ord("t"): None}))
            whole = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return whole if "b" in mode else io.TextIOWrapper(whole, *args[1:] or ["utf-8"])

        return call

    def _save_file(self, tensors: Any, path: Path, metadata: dict[str, str] | None = None) -> None:
        """Raise an error as Rust does, with the system's message in words."""
        try:
            self.touch("write", path)
        except OSError as error:
            raise safetensors.SafetensorError(f"I/O error: {error.strerror} (os error {error.errno})") from None
        save_file(tensors, path, metadata)


class _WatchedFile(io.FileIO):
    def __init__(self, disk: Disk, file: Any, mode: str):
        self.disk = disk
        super().__init__(file, mode)

    def write(self, data: Any) -> int:
        try:
            self.disk.touch("write", self.fileno())
        except OSError:
            super().write(bytes(data)[: len(data) // 2])
            raise
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        self.disk.touch("write", self.fileno())
        return super().truncate(size)
