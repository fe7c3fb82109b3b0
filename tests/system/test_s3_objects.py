"""Small objects by obstore: it uses the endpoint and credentials of s3fs, whatever the environment says."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from squeeze.system import s3_objects
from squeeze.system.s3_objects import first_bytes

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'squeeze-neural[cloud]'")
pytest.importorskip("obstore", reason="obstore is not installed: pip install 'squeeze-neural[cloud]'")

KEYS = {"key": "EXPLICIT", "secret": "s"}
FOR_OTHERS = {
    "AWS_SESSION_TOKEN": "another",
    "AWS_SKIP_SIGNATURE": "true",
    "AWS_REQUEST_PAYER": "true",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
    "AWS_BUCKET": "another",
    "AWS_ALLOW_HTTP": "true",
}


class Store(ThreadingHTTPServer):
    """Answers every request with its own name, or not at all."""

    def __init__(self, name: str):
        super().__init__(("127.0.0.1", 0), _Answer)
        self.body, self.asked, self.fails = name.encode(), [], False
        Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append((self.path, dict(self.headers)))
        body, size = self.server.body, len(self.server.body)
        self.send_response(403 if self.server.fails else 206)
        for name, value in (
            ("Content-Length", size),
            ("Content-Range", f"bytes 0-{size - 1}/{size}"),
            ("ETag", '"x"'),
            ("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT"),
        ):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def stores(monkeypatch):
    """Two servers: the one that s3fs asks, and one that the environment names."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    right, wrong = Store("right"), Store("wrong")
    others = dict.fromkeys(("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"), wrong.address)
    for name, value in {**FOR_OTHERS, **others, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "none")
    yield right, wrong
    for store in (right, wrong):
        store.shutdown()
        store.server_close()


def opened(store, **settings):
    return fsspec.filesystem("s3", endpoint_url=store.address, skip_instance_cache=True, **settings)


@pytest.mark.parametrize("token", [None, "of a role"])
def test_the_place_and_the_keys_are_those_of_s3fs(stores, token):
    right, wrong = stores
    fs = opened(right, **KEYS, token=token)
    assert first_bytes(fs, ["bucket/tree/a", "bucket/b c"], [100, 100]) == [b"right", b"right"]
    assert not wrong.asked and sorted(path for path, _ in right.asked) == ["/bucket/b%20c", "/bucket/tree/a"]
    for _, headers in right.asked:
        lower = {name.lower(): value for name, value in headers.items()}
        assert "Credential=EXPLICIT/" in lower["authorization"]
        assert lower.get("x-amz-security-token") == token
        assert "x-amz-request-payer" not in lower


def test_what_is_read_anonymously_is_not_signed(stores):
    right, wrong = stores
    assert first_bytes(opened(right, anon=True), ["bucket/a"], [100]) == [b"right"]
    assert not wrong.asked and not {"Authorization", "authorization"} & set(right.asked[0][1])


@pytest.mark.parametrize("key", ["a/", "a//b", "./a", "a/../b", "a%2fb", "a*", "é"])
def test_names_that_may_be_written_in_two_ways_are_left_to_s3fs(stores, key):
    right, _ = stores
    assert first_bytes(opened(right, **KEYS), [f"bucket/{key}"], [100]) == [None] and not right.asked


def test_amazons_servers_for_some_are_left_to_s3fs(stores, monkeypatch):
    monkeypatch.setattr(s3_objects, "_signed", lambda fs: {})
    for variables in ({"AWS_USE_FIPS_ENDPOINT": "true"}, {"AWS_DEFAULT_REGION": "cn-north-1"}):
        with monkeypatch.context() as patch:
            for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
                patch.delenv(name)
            for name, value in {"AWS_DEFAULT_REGION": "us-east-1", **variables}.items():
                patch.setenv(name, value)
            fs = fsspec.filesystem("s3", skip_instance_cache=True, **KEYS)
            assert s3_objects._store(fs, "bucket", s3_objects._Bucket()) is None


def test_a_store_that_fails_twice_is_left_to_s3fs(stores):
    right, _ = stores
    right.fails, fs = True, opened(right, **KEYS)
    for _ in range(4):
        assert first_bytes(fs, ["bucket/a", "bucket/b"], [100, 100]) == [None, None]
    assert len(right.asked) == 2


def test_a_forked_process_leaves_all_to_s3fs(stores, monkeypatch):
    right, _ = stores
    fs = opened(right, **KEYS)
    assert first_bytes(fs, ["bucket/a"], [100]) == [b"right"]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert first_bytes(fs, ["bucket/a"], [100]) == [None] and len(right.asked) == 1
