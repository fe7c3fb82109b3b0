"""The cache of compiled code on the disk: its folders, and what they depend on.

numba's own cache notices a change only in the file of the entry point. So the cache folder of a file is named after the
content of every source that its code depends on: its own, and all that it imports in turn. An edited or upgraded
package never runs outdated machine code.
"""

import atexit
import hashlib
import os
import re
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

# Not by `from`, which `compiled_sources` follows: no machine code depends on it.
import squeeze.system.cache as user_cache

__all__ = ["cache_folder", "cache_root", "compiled_sources", "source_digest", "troubles"]

_PACKAGE = Path(__file__).parents[1]
_IMPORT = re.compile(rf"^from ({_PACKAGE.name}[\w.]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)
_COMPILER = Path("numerics/compiling.py")  # every kernel depends on it


def cache_root() -> Path:
    """Return the folder that holds the folders of compiled code, in the user's cache or among temporary files."""
    if base := os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "squeeze" / "numba"
    try:
        return Path.home() / ".cache" / "squeeze" / "numba"
    except RuntimeError:  # an account without a home
        return _temporary()


@cache
def _temporary() -> Path:
    """Return a folder for temporary files that no other user can write to, the same for each process if possible."""
    folder = Path(tempfile.gettempdir(), f"squeeze-numba-{os.geteuid()}")
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        if not folder.is_symlink() and folder.stat().st_uid == os.geteuid() and not user_cache.open_to_others(folder):
            return folder
    own = tempfile.mkdtemp(prefix="squeeze-numba-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(own)


@cache
def cache_folder(file: Path) -> Path:
    """Return the folder for code compiled from a file's entry points, and create it if necessary.

    Its name depends on the sources, and no other user can write to it.
    """
    import numba

    name = source_digest(file, numba.__version__)
    try:
        folder = cache_root() / name
        user_cache.make_folder(folder)
        trouble = _trouble_with(folder)
    except OSError as error:
        trouble = f"{error.filename or folder}: {error.strerror}"
    if trouble is None:
        return folder
    troubles.add(f"Warning: compiled code is kept in {_temporary()}, not in the cache: {trouble}")
    folder = _temporary() / name
    folder.mkdir(0o700, exist_ok=True)
    return folder


troubles: set[str] = set()  # warnings that are shown when code is compiled or loaded


def _trouble_with(folder: Path) -> str | None:
    """Return why a folder cannot be used as a cache of machine code, or None."""
    if place := user_cache.open_to_others(folder):
        return (
            f"other users may write to {place}; delete {folder.parent}, or set XDG_CACHE_HOME to a folder of your own"
        )
    return None if os.access(folder, os.W_OK) else f"{folder} cannot be written"


def source_digest(file: Path, version: str = "") -> str:
    """Return a digest of all sources that a file's compiled code depends on, and of the compiler's version."""
    digest = hashlib.sha256(version.encode())
    for path, text in sorted(compiled_sources(file, _PACKAGE).items()):
        digest.update(f"{path.name}\0{text}".encode())
    return digest.hexdigest()[:16]


def compiled_sources(file: Path, package: Path) -> dict[Path, str]:
    """Return the text of each file that a file's compiled code depends on: its own, and all that it imports in turn.

    Steps and constants of imported files become part of the machine code.
    """
    sources: dict[Path, str] = {}
    waiting = [file, package / _COMPILER]
    while waiting:
        path = waiting.pop()
        if path not in sources:
            sources[path], modules = _read(path)
            waiting += [found for module in modules if (found := _file(package, module))]
    return sources


@cache
def _read(path: Path) -> tuple[str, frozenset[str]]:
    """Return a file's text and the modules that it imports from the package, among names that may not be modules."""
    text, modules = path.read_text("utf-8"), set()
    for module, several, one in _IMPORT.findall(text):
        modules |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", several or one))}
    return text, frozenset(modules)


@cache
def _file(package: Path, module: str) -> Path | None:
    """Return the path of a module, or None if there is no such module or it is the whole package, which compiles
    nothing.
    """
    path = package.joinpath(*module.split(".")[1:])
    files = (path.with_name(f"{path.name}.py"), path / "__init__.py") if path != package else ()
    return next(filter(Path.is_file, files), None)
