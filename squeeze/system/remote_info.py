"""Listings of a store, a page at a time, and descriptions of its objects as file statuses.

Memory holds one page, so that a store may have millions of objects. What only stores need is imported inside functions:
every command imports this module.
"""

import hashlib
import os
import stat
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import datetime
from inspect import signature
from typing import Any

__all__ = ["facts_of", "has_version", "infos", "objects", "status_of", "take_keys_whole", "version_of"]

_VERSION = "?versionId="  # appended by s3fs to the names of objects
_PAGE = 1000  # objects, as S3 gives them
Info = dict[str, Any]  # fsspec's description of an object


def objects(fs: Any, path: str) -> Iterator[Info]:
    """Yield all objects below a prefix, in the order of their keys if the store lists them in that order.

    s3fs lists in pages. Other filesystems list each prefix by itself, and then the prefixes in it. If a filesystem
    cannot tell what is in a prefix, the prefix is one entry with the key "unlisted".
    """
    if hasattr(fs, "_iterdir") and hasattr(fs, "split_path"):
        bucket, key, _ = fs.split_path(path)
        yield from _in_pages(fs, fs._iterdir(bucket, delimiter="", prefix=f"{key.rstrip('/')}/" if key else ""))
    else:
        yield from _by_prefix(fs, path)


def take_keys_whole(fs: Any) -> None:
    """Keep s3fs from cutting a version off a key when it does not use versions."""
    if fs.protocol != ("s3", "s3a") or fs.version_aware or "split_path" in vars(fs):
        return
    split = fs.split_path

    def whole(path: str) -> tuple[str, str, None]:
        bucket, key, _ = split(path.partition(_VERSION)[0])
        return bucket, key + "".join(path.partition(_VERSION)[1:]), None

    fs.split_path = whole


def infos(fs: Any, paths: list[str]) -> list[Info | Exception | None]:
    """Return what the store says about each path, None for a missing object, or an exception. Ask concurrently if
    possible.
    """
    for path in paths:
        fs.invalidate_cache(path)
    if fs.async_impl:
        import asyncio

        from fsspec.asyn import sync

        async def ask() -> list[Any]:
            return await asyncio.gather(*map(fs._info, paths), return_exceptions=True)

        found = sync(fs.loop, ask)
    else:
        found = [_info(fs, path) for path in paths]
    return [None if isinstance(one, FileNotFoundError) else one for one in found]


def _info(fs: Any, path: str) -> Info | Exception:
    try:
        return dict(fs.info(path))
    except Exception as error:
        return error


def _in_pages(fs: Any, listing: AsyncIterator[Info]) -> Iterator[Info]:
    from fsspec.asyn import sync

    async def following() -> list[Info]:
        found = []
        async for info in listing:
            found.append(info)
            if len(found) == _PAGE:
                break
        return found

    while page := sync(fs.loop, following):
        yield from (info for info in page if _is_object(info))


def _by_prefix(fs: Any, path: str) -> Iterator[Info]:
    for info in sorted(fs.ls(path, detail=True, refresh=True), key=lambda info: _place_in_order(info, path)):
        if info["type"] == "directory" and _is_itself(info, path):
            yield from _behind_an_empty_part(fs, path)
        elif info["type"] == "directory":
            yield from _by_prefix(fs, info["name"])
        elif _is_object(info):
            yield info


def _is_itself(info: Info, path: str) -> bool:
    """Return whether a listed prefix has the name of the prefix that was asked for.

    Keys below it have an empty part, as in a//b, or the entry is an object for the prefix itself.
    """
    return str(info["name"]).strip("/") == path.strip("/")


def _behind_an_empty_part(fs: Any, path: str) -> Iterator[Info]:
    """Yield objects whose keys begin with the path and an empty part.

    A filesystem of fsspec drops the trailing slashes of a prefix. If it cannot search by the beginning of a key, yield
    an "unlisted" entry for the prefix.
    """
    begin = f"{path.rstrip('/')}//"
    if "prefix" not in signature(getattr(type(fs), "_find", type(fs).find)).parameters:
        yield {"name": begin, "type": "file", "size": 0, "unlisted": True}
        return
    found = fs.find(path, prefix="/", detail=True)
    yield from (found[name] for name in sorted(found) if name.startswith(begin) and _is_object(found[name]))


def _place_in_order(info: Info, path: str) -> str:
    """Return a sort key that puts a folder where its contents belong."""
    if info["type"] != "directory":
        return str(info["name"])
    return f"{path.rstrip('/')}//" if _is_itself(info, path) else f"{str(info['name']).rstrip('/')}/"


def _is_object(info: Info) -> bool:
    """Return whether an entry is an object. Stores may keep an empty object for the folder itself."""
    return info["type"] != "directory" and (not str(info["name"]).endswith("/") or bool(info["size"]))


_TIMES = ("mtime", "LastModified", "Last-Modified", "last_modified", "updated", "created")
_NAMED = ("VersionId", "generation", "ETag", "etag", "blob_id")  # fields that identify a version, the most exact first
_FACTS = ("ETag", "etag", "generation", "blob_id", *_TIMES)
_STARTED = time.time()  # replaces a missing time
_FOLDER = 0o755


def version_of(info: dict[str, Any]) -> str:
    """Return the store's own name of an object's version, or "" if it has none."""
    return str(next(filter(None, map(info.get, _NAMED)), ""))


def status_of(info: dict[str, Any]) -> os.stat_result:
    """Return an entry as a file status. The inode is a hash of what identifies the version.

    Without a version, it is a hash of the start time of this process.
    """
    is_folder = info["type"] == "directory"
    mode = stat.S_IFDIR | _FOLDER if is_folder else stat.S_IFREG | _file_mode()
    facts = facts_of(info)
    modified = next(filter(None, (_seconds(info.get(key)) for key in _TIMES)), _STARTED)
    number = _inode(facts if any(facts) else _STARTED)
    return os.stat_result(
        (mode, number, 0, 1, os.geteuid(), os.getegid(), info["size"] or 0, *[int(modified)] * 3),
        {"st_atime_ns": int(modified * 1e9), "st_mtime_ns": int(modified * 1e9), "st_ctime_ns": 0},
    )


def has_version(status: os.stat_result) -> bool:
    """Return whether a status identifies a version. Without one, the status differs in each process."""
    return status.st_ino != _inode(_STARTED)


def _inode(version: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(version).encode()).digest()[:7])


def facts_of(info: dict[str, Any]) -> list[object]:
    """Return the fields that identify the version of an object."""
    return [_fact(info.get(key)) for key in _FACTS]


def _fact(value: object) -> object:
    """Return a field in the form that listings and an object's own header have in common."""
    return int(value.timestamp()) if isinstance(value, datetime) else value


def _file_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _seconds(when: object) -> float:
    """Return the seconds since 1970, or 0 if the time is unknown."""
    with suppress(ValueError):
        when = _time_of(when) if isinstance(when, str) else when
    if isinstance(when, datetime):
        return when.timestamp()
    return float(when) if isinstance(when, int | float) else 0.0


def _time_of(text: str) -> datetime:
    """Parse a time in ISO format or, as HTTP servers write it, in the format of mail. Raise ValueError if it is
    invalid.
    """
    with suppress(ValueError):
        return datetime.fromisoformat(text)
    from email.utils import parsedate_to_datetime

    return parsedate_to_datetime(text)
