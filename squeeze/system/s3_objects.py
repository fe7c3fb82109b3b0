"""Many small objects of S3 at once, by obstore: a request takes a fourth of the processor's time that it takes s3fs.

s3fs decides all the same: its place and its credentials are passed on, nothing is taken from the environment, and what
obstore does not get is left to it. Settings that obstore is not told leave all of it to s3fs.
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

_PLAIN = {"anon", "endpoint_url", "key", "secret", "token", "profile"}  # settings of s3fs that obstore is told
_OF_S3FS = {"default_block_size", "default_cache_type", "default_fill_cache", "max_concurrency"}  # settings for itself
_NAME = re.compile(r"[\w.=@+-][\w.=@+ ,()/-]*(?<!/)", re.ASCII)  # of objects; others may be written in another way
_AMAZON, _PLAIN_AMAZON = ".amazonaws.com", re.compile(r"https://s3(\.[a-z0-9-]+)?\.amazonaws\.com/?")
_THREADS = 64  # requests at a time
_ENOUGH = 2  # failures of a bucket's first object, one after the other, after which it is left to s3fs
_RETRIES: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}


@dataclass
class _Bucket:
    """What obstore reads a bucket by."""

    store: Any = None
    signed: dict[str, Any] = field(default_factory=dict)  # by what the store signs
    works: bool = False
    failures: int = 0


_buckets: WeakKeyDictionary[Any, dict[str, _Bucket]] = WeakKeyDictionary()  # by filesystem, and name


def first_bytes(fs: Any, paths: list[str], counts: list[int]) -> list[bytes | None]:
    """The first `counts[i]` bytes of each object of a filesystem of fsspec, fewer where it is shorter.

    None where `fs` has to be asked: it is not S3 or has settings of its own, obstore is not installed, or the object
    does not come, whatever the reason: fs tells reasons well.
    """
    found: list[bytes | None] = [None] * len(paths)
    if not paths or fs.protocol != ("s3", "s3a") or fs.asynchronous or not set(fs.storage_options) <= _PLAIN | _OF_S3FS:
        return found
    name = fs.split_path(paths[0])[0]
    bucket = _buckets.setdefault(fs, {}).setdefault(name, _Bucket())
    wanted = [number for number, path in enumerate(paths) if _is_plain(fs.split_path(path), name)]
    if not wanted or bucket.failures >= _ENOUGH:
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

        came = [] if bucket.works else [fetch(wanted[0])]  # as a rule all come if one does
        if bucket.works or came[0] is not None:
            came += pool.map(fetch, wanted[len(came) :])
        bucket.works = any(data is not None for data in came)
        bucket.failures = 0 if bucket.works else bucket.failures + 1
        for number, data in zip(wanted, came, strict=False):
            found[number] = data
    return found


def _is_plain(place: tuple[str, str, str | None], wanted: str) -> bool:
    bucket, key, version = place
    return bucket == wanted and not version and "//" not in key and _NAME.fullmatch(key) is not None


@cache
def _threads() -> tuple[int, ThreadPoolExecutor]:
    """The process that began them, and threads: one set of them, so that what is asked for first comes first."""
    return os.getpid(), ThreadPoolExecutor(_THREADS, thread_name_prefix="squeeze-objects")


def _pool() -> ThreadPoolExecutor | None:
    """None in a process that was forked from one that has used obstore: it would wait forever."""
    process, pool = _threads()
    return pool if process == os.getpid() else None


def _store(fs: Any, name: str, bucket: _Bucket) -> Any:
    """None where obstore would ask another place."""
    from obstore.store import S3Store

    about, address = fs.s3.meta, fs.s3.meta.endpoint_url
    if _AMAZON in address and not _PLAIN_AMAZON.fullmatch(address):
        return None  # such as the servers of FIPS, or of China
    signed = _signed(fs)
    if bucket.store is None or signed != bucket.signed:
        by: dict[str, Any] = {"credential_provider": lambda: signed} if signed else {"skip_signature": True}
        bucket.store = S3Store(
            name,
            endpoint=address,
            aws_endpoint_url_s3=address,  # else the environment's goes before `endpoint`
            region=about.region_name.replace("aws-global", "us-east-1"),
            virtual_hosted_style_request=False,
            request_payer=False,
            **{"skip_signature": False, **by},
            client_options={"allow_http": address.startswith("http:")},
            retry_config=_RETRIES,
        )
        bucket.signed = signed  # last: until then other threads make a store of their own
    return bucket.store


def _signed(fs: Any) -> dict[str, Any]:
    """What requests are signed with now, since the keys of a role expire; nothing for what is read anonymously. Raises
    LookupError where s3fs has nothing to sign with."""
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
