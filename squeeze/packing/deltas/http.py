"""Messages over HTTP, with the server and the client of the standard library.

`GET /since/N` returns the messages after message N, and `GET /since/none` what a receiver without weights needs. Each
message has its size before it, 8 bytes, little-endian.
"""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from squeeze.errors import DamagedError, SqueezeError, printable
from squeeze.packing.deltas.receiver import Receiver
from squeeze.packing.deltas.stream import Stream

__all__ = ["fetch", "serve"]

_SIZE = 8
_ROOM = 1 << 26  # bytes of an answer beyond two times the weights


@contextmanager
def serve(stream: Stream, port: int = 0, host: str = "127.0.0.1") -> Iterator[str]:
    """Answer requests for the messages of a stream until the block ends; yield the URL.

    Anyone who reaches the port can read the weights, so listen on a private network only.

    Args:
        stream: the stream, whose steps go on meanwhile.
        port: the port, or 0 for a free one.
        host: the address to listen on.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = _number_of(self.path)
            if number is _UNKNOWN:
                self.send_error(404, "expected /since/N or /since/none")
                return
            try:
                answer = [len(one).to_bytes(_SIZE, "little") + one for one in stream.since(number)]
            except SqueezeError as error:
                self.send_error(503, printable(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(sum(map(len, answer))))
            self.end_headers()
            for part in answer:
                self.wfile.write(part)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer((host, port), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{host}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


_UNKNOWN = -1


def _number_of(path: str) -> int | None:
    text = path.removeprefix("/since/")
    if text == path or not (text == "none" or (text.isascii() and text.isdecimal() and len(text) < 19)):
        return _UNKNOWN
    return None if text == "none" else int(text)


def fetch(url: str, receiver: Receiver, timeout: float = 60) -> int:
    """Ask a server for the messages that a receiver lacks and apply them; return their number.

    Args:
        url: what `serve` yields.
        receiver: the receiver.
        timeout: seconds to wait for the server.

    Raises:
        SqueezeError: if the server cannot be reached, or a message is of another model.
        DamagedError: if an answer is damaged. The weights are those of the last message that was applied.
    """
    if not url.startswith(("http://", "https://")):
        raise SqueezeError(f"expected a URL of http or https, got {printable(url)}")
    have = "none" if receiver.sequence is None else receiver.sequence
    most = 2 * receiver.size + _ROOM
    try:
        with urlopen(f"{url.rstrip('/')}/since/{have}", timeout=timeout) as answer:
            data = answer.read(most + 1)
    except HTTPError as error:
        raise SqueezeError(f"{printable(url)}: the server answered {error.code}: {printable(error.reason)}") from None
    except (URLError, OSError, ValueError, http.client.HTTPException) as error:
        raise SqueezeError(f"{printable(url)}: cannot be read: {printable(error)}") from None
    if len(data) > most:
        raise DamagedError(f"{printable(url)}: the answer is longer than {most:,} bytes")
    applied = 0
    for message in _messages(memoryview(data), url):
        receiver.apply(message)
        applied += 1
    return applied


def _messages(data: memoryview, url: str) -> Iterator[memoryview]:
    """Yield the messages of an answer. Raises DamagedError if it is cut off."""
    start = 0
    while start < len(data):
        size = int.from_bytes(data[start : start + _SIZE], "little")
        start += _SIZE
        if start + size > len(data):
            raise DamagedError(f"{printable(url)}: the answer was cut off")
        yield data[start : start + size]
        start += size
