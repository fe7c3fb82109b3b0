"""A watch over accesses outside a folder: requests to a loopback server, connections, and files opened or changed."""

import os
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

_CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
_LOOKS = ("open", "os.listdir", "os.scandir", "shutil.rmtree", "shutil.copyfile", "shutil.move")
_ASKS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request")
_looking: "list[Watch]" = []


class Watch:
    """outside: the folder. server: the address of the server, as "http://127.0.0.1:PORT"."""

    def __init__(self, outside: Path, server: str, requests: list[str]):
        self.outside, self.server, self._requests = os.path.realpath(outside), server, requests
        self._news: list[str] = []

    @contextmanager
    def looking(self) -> Iterator[list[str]]:
        """A record of accesses outside the folder during a block."""
        _install()
        self._news, before = [], len(self._requests)
        _looking.append(self)
        try:
            yield self._news
        finally:
            _looking.remove(self)
            self._news += self._requests[before:]

    def told(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _ASKS:
            self._news.append(f"{event} {arguments[1:] if event == 'socket.connect' else arguments}")
        elif event in _CHANGES or event in _LOOKS:
            for path in arguments:
                if isinstance(path, (str, bytes, os.PathLike)) and self._is_outside(os.fsdecode(path)):
                    self._news.append(f"{event} {os.fsdecode(path)}")

    def _is_outside(self, path: str) -> bool:
        try:
            return os.path.realpath(path).startswith(self.outside)
        except (OSError, ValueError):
            return False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for watch in _looking:
        watch.told(event, arguments)


_hooks: list[Any] = []


def _install() -> None:
    if not _hooks:
        sys.addaudithook(_hook)
        _hooks.append(_hook)


@contextmanager
def served(folder: Path) -> Iterator[Watch]:
    """Start a server of a folder that records requests, and a Watch over it and the folder."""
    requests: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, directory=str(folder), **options)

        def log_message(self, form: str, *args: Any) -> None:
            requests.append(f"request {args[0] if args else form}")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield Watch(folder, f"http://127.0.0.1:{server.server_address[1]}", requests)
        finally:
            server.shutdown()
            thread.join()
