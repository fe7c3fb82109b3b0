"""Read S3's own view of `bucket`, and count the requests it gets."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.makers.s3_server import listening, stores


def keys(s3: Any) -> list[str]:
    return sorted(listed["Key"] for listed in s3.list_objects_v2(Bucket="bucket").get("Contents", []))


def body(s3: Any, key: str) -> bytes:
    return s3.get_object(Bucket="bucket", Key=key)["Body"].read()


def uploads(s3: Any) -> list[Any]:
    return s3.list_multipart_uploads(Bucket="bucket").get("Uploads", [])


class Counting:
    """A WSGI application around S3 that counts bytes in both directions.

    `copies` has the headers of each copy within the store. Those that `refuses` selects are refused.
    """

    def __init__(self) -> None:
        self.sent = self.received = 0
        self.copies: list[dict[str, Any]] = []
        self.refuses: Callable[[dict[str, Any]], bool] = lambda headers: False
        self._application = stores()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        self.received += int(environ.get("CONTENT_LENGTH") or 0)
        if "HTTP_X_AMZ_COPY_SOURCE" in environ:
            self.copies.append(dict(environ))
            if self.refuses(environ):
                start("501 Not Implemented", [("Content-Type", "application/xml")])
                return [b"<Error><Code>NotImplemented</Code><Message>No such function.</Message></Error>"]
        answer = b"".join(self._application(environ, start))
        self.sent += len(answer)
        return [answer]

    def taken(self) -> tuple[int, int]:
        """Return the bytes that were read and written since the last call."""
        found = self.sent, self.received
        self.sent = self.received = 0
        return found


@contextmanager
def counted(monkeypatch: Any) -> Iterator[Counting]:
    """Let s3:// use a server that counts."""
    import s3fs

    with listening(made := Counting()) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        s3fs.S3FileSystem.clear_instance_cache()
        yield made
