"""An HTTP server that serves ranges of its files, with their times."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[tuple[str, list[int]]]:
    """Yield the URL of a server, and a list of the bytes of each answer. `files` are contents by path."""
    sent: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, with_body: bool) -> None:
            data = files.get(self.path)
            if data is None:
                self.send_error(404)
                return
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            begin, end = (int(found[1]), min(int(found[2]) + 1, len(data))) if found else (0, len(data))
            self.send_response(206 if found else 200)
            self.send_header("Content-Length", str(end - begin))
            self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
            if found:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
            self.end_headers()
            if with_body:
                sent.append(end - begin)
                self.wfile.write(data[begin:end])

        def log_message(self, *rest: object) -> None:
            """Tests are quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", sent
        finally:
            server.shutdown()
            thread.join()
