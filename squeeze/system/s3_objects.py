"""Reading many small S3 objects concurrently with obstore, which takes a quarter of the CPU time of s3fs.

The endpoint and the credentials are those of s3fs, and nothing is taken from the environment. Objects that obstore does
not get are read by s3fs, and all objects if s3fs has settings that obstore does not know.
"""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["first_bytes"]

_PLAIN = {"anon", "endpoint_url", "key", "secret", "token", "profile"}  # settings of s3fs that are passed to obstore
_OF_S3FS = {
    "default_block_size",
    "default_cache_type",
    "default_fill_cache",
    "max_concurrency",
}  # settings that concern only s3fs
_NAME = re.compile(r"[\w.=@+-][\w.=@+ ,()/-]*(?<!/)", re.ASCII)  # names of objects that have only one spelling in a URL
_AMAZON, _PLAIN_AMAZON = ".amazonaws.com", re.compile(r"https://s3(\.[a-z0-9-]+)?\.amazonaws\.com/?")
_THREADS = 64  # concurrent requests
_ENOUGH = 2  # consecutive failures of a bucket's first object, after which s3fs reads everything
_RETRIES: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}


@dataclass
class _Bucket:
    """The state of obstore for one bucket."""

    store: Any = None
    signed: dict[str, Any] = field(default_factory=dict)  # the credentials of the store
    works: bool = False
    failures: int = 0


_buckets: WeakKeyDictionary[Any, dict[str, _Bucket]] = WeakKeyDictionary()  # by filesystem and bucket name


def first_bytes(fs: Any, paths: list[str], counts: list[int]) -> list[bytes | None]:
    """Return the first `counts[i]` bytes of each object, fewer if it is shorter, or None if `fs` has to read it.

    `fs` has to read objects if it is not S3 or has settings of its own, or if obstore is not installed. It also reads
    those whose request failed, since it reports reasons well.
    """
    found: list[bytes | None] = [None] * len(paths)
    if not paths or fs.protocol != ("s3", "s3a") or fs.asynchronous or not set(fs.storage_options) <= _PLAIN | _OF_S3FS:
        return found
    name = fs.split_path(paths[0])[0]
    bucket = _buckets.setdefault(fs, {}).setdefault(name, _Bucket())
    plain = [number for number, path in enumerate(paths) if _is_plain(fs.split_path(path), name)]
    if not plain or bucket.failures >= _ENOUGH:
        return found
    with suppress(Exception):
        import obstore

        pool, store = _pool(), _store(fs, name, bucket)
        if pool is None or store is None:
            return found

        def fetch(number: int) -> bytes | None:
            with suppress(Exception):
                return bytes(obstore.get_range(store, fs.split_path(paths[number])[1], start=0, end=counts[number]))
            return None

        came = [] if bucket.works else [fetch(plain[0])]  # usually all succeed if the first one does
        if bucket.works or came[0] is not None:
            came += pool.map(fetch, plain[len(came) :])
        bucket.works = any(data is not None for data in came)
        bucket.failures = 0 if bucket.works else bucket.failures + 1
        for number, data in zip(plain, came, strict=False):
            found[number] = data
    return found


def _is_plain(place: tuple[str, str, str | None], wanted: str) -> bool:
    bucket, key, version = place
    return bucket == wanted and not version and "//" not in key and _NAME.fullmatch(key) is not None


@cache
def _threads() -> tuple[int, ThreadPoolExecutor]:
    """Return the process that started the threads, and one pool of them, so that requests are served in order."""
    return os.getpid(), ThreadPoolExecutor(_THREADS, thread_name_prefix="squeeze-objects")


def _pool() -> ThreadPoolExecutor | None:
    """Return the threads, or None in a process forked from one that has used obstore, which would wait forever."""
    process, pool = _threads()
    return pool if process == os.getpid() else None


def _store(fs: Any, name: str, bucket: _Bucket) -> Any:
    """Return obstore's bucket, or None if it would ask another endpoint."""
    from obstore.store import S3Store

    about, address = fs.s3.meta, fs.s3.meta.endpoint_url
    if _AMAZON in address and not _PLAIN_AMAZON.fullmatch(address):
        return None  # such as FIPS endpoints, or those in China
    signed = _signed(fs)
    if bucket.store is None or signed != bucket.signed:
        by: dict[str, Any] = {"credential_provider": lambda: signed} if signed else {"skip_signature": True}
        bucket.store = S3Store(
            name,
            endpoint=address,
            aws_endpoint_url_s3=address,  # otherwise the environment overrides `endpoint`
            region=about.region_name.replace("aws-global", "us-east-1"),
            virtual_hosted_style_request=False,
            request_payer=False,
            **{"skip_signature": False, **by},
            client_options={"allow_http": address.startswith("http:")},
            retry_config=_RETRIES,
        )
        bucket.signed = signed  # last, so that other threads create a store of their own until then
    return bucket.store


def _signed(fs: Any) -> dict[str, Any]:
    """Return the current credentials, since those of a role expire, or nothing for anonymous access.

    Raises LookupError if s3fs has no credentials.
    """
    from fsspec.asyn import sync

    async def ask() -> Any:
        credentials = await fs.session.get_credentials()
        return credentials and await credentials.get_frozen_credentials()

    if fs.anon:
        return {}
    key, secret, token = (fs.key, fs.secret, fs.token) if fs.key else (sync(fs.loop, ask) or [None] * 3)[:3]
    if key is None:
        raise LookupError("no credentials")
    return {"access_key_id": key, "secret_access_key": secret, "token": token or None, "expires_at": None}
