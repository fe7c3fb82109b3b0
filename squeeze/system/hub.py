"""Repositories of the Hugging Face hub: addresses, and snapshots in its local cache.

huggingface_hub downloads, resumes and caches; its settings count, such as HF_HUB_OFFLINE, HF_HOME and HF_TOKEN. A name
that only a file mentions is never fetched: callers pass what a user named.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from urllib.parse import unquote

from squeeze.errors import OptionError, SqueezeError, escaped, printable
from squeeze.system.extras import explained
from squeeze.system.storage import remote

__all__ = ["Repository", "copy_if_offline", "local_copy", "snapshot"]

_SCHEME = "hf://"
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_REVISION = re.compile(r"(refs/(?:pr|convert)/[^/]+|[^/]+)(?:/(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Repository:
    """A repository of models, and a path in it, as in "hf://owner/model@revision/folder"."""

    name: str
    revision: str | None = None
    path: str = ""

    @classmethod
    def of(cls, url: str) -> "Repository":
        """Parse a URL. Raises OptionError if it does not name a repository of models."""
        text = url.removeprefix(_SCHEME).removeprefix("models/").strip("/")
        before, at, after = text.partition("@")
        found = _REVISION.fullmatch(after) if at else None
        if found:
            name, revision, path = before, unquote(found[1]), found[2] or ""
        else:
            parts = text.split("/", 2)
            name, revision, path = "/".join(parts[:2]), None, parts[2] if len(parts) > 2 else ""
        if not _NAME.fullmatch(name) or name.startswith(("datasets/", "spaces/")) or (at and not found):
            raise OptionError(f"expected hf://OWNER/MODEL, got {printable(url)}")
        return cls(name, revision, path)


def local_copy(path: Path) -> Path:
    """Return the local snapshot of what a URL of hf:// names, which is downloaded if needed; other paths as they are.

    Raises SqueezeError if it cannot be had, OptionError for another kind of repository, and PackageError without
    huggingface_hub.
    """
    if not _is_hub(path):
        return path
    named = Repository.of(str(path))
    wanted = [named.path, f"{named.path}/*"] if named.path else None
    root = snapshot(named.name, named.revision, allow=wanted)
    found = root / named.path
    if not found.resolve().exists() or ".." in Path(named.path).parts:
        raise SqueezeError(f"{printable(str(path))}: the repository has no {printable(named.path)}")
    return found


def copy_if_offline(path: Path) -> Path:
    """Return the snapshot in the cache if HF_HUB_OFFLINE is set, and otherwise the path, which is read in parts."""
    if not _is_hub(path):
        return path
    with explained():
        from huggingface_hub import constants
    return local_copy(path) if constants.HF_HUB_OFFLINE else path


def _is_hub(path: Path) -> bool:
    return remote(path) is not None and str(path).startswith(_SCHEME) and "::" not in str(path)


def snapshot(
    name: str,
    revision: str | None = None,
    *,
    cache: str | Path | None = None,
    allow: Sequence[str] | None = None,
    ignore: Sequence[str] | str | None = None,
) -> Path:
    """Return the folder of a repository's snapshot in the cache, and download what is missing.

    Args:
        name: OWNER/MODEL.
        revision: branch, tag or commit; by default the main branch.
        cache: the folder of the cache; by default the hub's.
        allow: patterns of the files that are needed; by default all.
        ignore: patterns of files that are not.

    Raises SqueezeError if the hub cannot be reached, or is not to be (HF_HUB_OFFLINE) and the cache has no such
    snapshot; PackageError without huggingface_hub.
    """
    with explained():
        import huggingface_hub
        from huggingface_hub import constants, errors
    offline = constants.HF_HUB_OFFLINE
    try:
        folder = huggingface_hub.snapshot_download(
            name,
            revision=revision,
            cache_dir=cache,
            allow_patterns=None if allow is None else list(allow),
            ignore_patterns=ignore if ignore is None or isinstance(ignore, str) else list(ignore),
            local_files_only=offline,
        )
    except (OSError, ValueError, errors.HfHubHTTPError) as error:
        why = "HF_HUB_OFFLINE is set, and the cache has no such snapshot" if offline else _first_line(error)
        raise SqueezeError(f"{printable(name)}: {why}") from error
    found = Path(folder)
    if allow is not None and not any(_matches(found, pattern) for pattern in allow):
        raise SqueezeError(f"{escaped(str(found))}: the snapshot has no {printable(', '.join(allow))}")
    return found


def _matches(folder: Path, pattern: str) -> bool:
    """Return whether a file of a snapshot matches a pattern of the hub."""
    test = re.compile(translate(pattern))
    return any(test.fullmatch(place.relative_to(folder).as_posix()) for place in folder.rglob("*"))


def _first_line(error: Exception) -> str:
    return printable(next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__))
