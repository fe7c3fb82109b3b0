"""Make an object server fail at random, as stores and networks do.

It answers 500 and 503 and resets connections: before the request is done, after it, and in the middle of an answer.
"""

import random
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import Any

__all__ = ["Faulty"]

_BODY = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>%s</Code><Message>Please try again.</Message></Error>'
_ANSWERS = (("500 Internal Server Error", b"InternalError"), ("503 Slow Down", b"SlowDown"))
Start = Callable[..., Any]


class Faulty:
    """A WSGI application around another that fails in the share `rate` of requests."""

    def __init__(self, application: Callable[..., Iterable[bytes]], rate: float, seed: int):
        self._application, self._rate = application, rate
        self._chance, self._lock = random.Random(seed), Lock()
        self.faults: dict[str, int] = {"answer": 0, "before": 0, "after": 0, "amid": 0}

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        with self._lock:
            kind = self._chance.choice(list(self.faults)) if self._chance.random() < self._rate else ""
            answer = self._chance.choice(_ANSWERS)
            if kind:
                self.faults[kind] += 1
        if kind == "answer":
            body = _BODY % answer[1]
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start(answer[0], [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [body]
        if kind == "before":
            return _reset(environ)
        made = self._application(environ, start)
        if kind == "after":
            b"".join(made)
            return _reset(environ)
        return _cut(environ, made) if kind == "amid" else made


def _cut(environ: dict[str, Any], made: Iterable[bytes]) -> Iterator[bytes]:
    data = b"".join(made)
    yield data[: len(data) // 2]
    yield from _reset(environ)


def _reset(environ: dict[str, Any]) -> list[bytes]:
    """Close the connection at once, as if it broke."""
    connection = environ["werkzeug.socket"]
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError
