"""What a store lists below a prefix, a page at a time, and what it says of many objects at once: memory holds no
more, were there millions of them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from inspect import signature
from typing import Any

__all__ = ["infos", "objects", "take_keys_whole"]

_VERSION = "?versionId="  # of s3fs, in the names of objects
_PAGE = 1000  # objects, as S3 gives them
Info = dict[str, Any]  # of an object, as fsspec has it


def objects(fs: Any, path: str) -> Iterator[Info]:
    """All objects below a prefix, in the order of their keys if the store lists them so.

    s3fs lists in pages. Of other filesystems each prefix is listed by itself, and those in it after each other; where
    one does not tell what is in a prefix, it has an entry that is "unlisted".
    """
    if hasattr(fs, "_iterdir") and hasattr(fs, "split_path"):
        bucket, key, _ = fs.split_path(path)
        yield from _in_pages(fs, fs._iterdir(bucket, delimiter="", prefix=f"{key.rstrip('/')}/" if key else ""))
    else:
        yield from _by_prefix(fs, path)


def take_keys_whole(fs: Any) -> None:
    """Let s3fs cut no version off a key where it is told to know of none."""
    if fs.protocol != ("s3", "s3a") or fs.version_aware or "split_path" in vars(fs):
        return
    split = fs.split_path

    def whole(path: str) -> tuple[str, str, None]:
        bucket, key, _ = split(path.partition(_VERSION)[0])
        return bucket, key + "".join(path.partition(_VERSION)[1:]), None

    fs.split_path = whole


def infos(fs: Any, paths: list[str]) -> list[Info | Exception | None]:
    """What the store says of many objects, asked at a time where it can be; None where nothing is there."""
    for path in paths:
        fs.invalidate_cache(path)
    if fs.async_impl:
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
    """Whether a prefix that is listed is called as the one that it is in: what begins with it has an empty part, as in
    a//b, or is an object for the prefix itself."""
    return str(info["name"]).strip("/") == path.strip("/")


def _behind_an_empty_part(fs: Any, path: str) -> Iterator[Info]:
    """By the beginnings of keys, since a filesystem of fsspec takes a prefix without its last slashes. Of one that does
    not look so, an entry for the prefix: unlisted."""
    begin = f"{path.rstrip('/')}//"
    if "prefix" not in signature(getattr(type(fs), "_find", type(fs).find)).parameters:
        yield {"name": begin, "type": "file", "size": 0, "unlisted": True}
        return
    found = fs.find(path, prefix="/", detail=True)
    yield from (found[name] for name in sorted(found) if name.startswith(begin) and _is_object(found[name]))


def _place_in_order(info: Info, path: str) -> str:
    """By which folders come where their contents would."""
    if info["type"] != "directory":
        return str(info["name"])
    return f"{path.rstrip('/')}//" if _is_itself(info, path) else f"{str(info['name']).rstrip('/')}/"


def _is_object(info: Info) -> bool:
    """Stores may keep an empty object for a folder itself."""
    return info["type"] != "directory" and (not str(info["name"]).endswith("/") or bool(info["size"]))
