"""Errors of object stores and their packages, translated to those that files raise: one line that names the URL."""

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import UnsupportedOperation
from typing import TypeVar

from squeeze.errors import PackageError, SqueezeError, StorageError, printable
from squeeze.system.extras import how_to_install

__all__ = ["connection_error", "retry", "translated_errors"]

T = TypeVar("T")
_WAITS = (0.05, 0.2, 0.8)  # seconds; packages of stores wait longer for errors that they know to be temporary
_UNKNOWN = "Protocol not known"  # the beginning of fsspec's message
_EXPIRED = "FileExpired"  # the name of an s3fs exception
_REFUSED = re.compile(r"credential|forbidden|unauthori[sz]ed|access ?denied|\b40[13]\b", re.IGNORECASE)


def connection_error(url: str, why: object) -> StorageError:
    """Return the error for a connection that ended early."""
    return StorageError(errno.EIO, f"the connection broke: {printable(why)}", url)


@contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """Translate exceptions of a store about this URL. Errors of squeeze itself and signals pass through.

    Raises:
        StorageError: The connection broke.
        OSError: The store refused the request, with the error that a file would raise.
        PackageError: The package for this kind of URL is not installed.
        SqueezeError: The store does not support the operation.
    """
    try:
        yield
    except SqueezeError:
        raise
    except ImportError as error:
        message = f"{url}: {_words(error)}: {how_to_install('cloud')}"
        raise PackageError(message, name=error.name) from error
    except (NotImplementedError, UnsupportedOperation) as error:
        raise SqueezeError(f"{url}: the store does not support this: {_words(error)}") from error
    except OSError as error:
        raise _as_of_files(error, url) from error
    except ValueError as error:
        if str(error).startswith(_UNKNOWN):
            raise SqueezeError(f"{url}: the scheme is unknown to fsspec") from error
        raise SqueezeError(f"{url}: {_words(error)}") from error
    except Exception as error:
        raise (
            _refused(error, url) if _REFUSED.search(_words(error)) else connection_error(url, _words(error))
        ) from error


def retry(url: str, ask: Callable[[], T]) -> T:
    """Return ask(), and repeat it a few times if the connection breaks. See `translated_errors`."""
    for wait in _WAITS:
        try:
            with translated_errors(url):
                return ask()
        except StorageError:
            time.sleep(wait)
    with translated_errors(url):
        return ask()


def _as_of_files(error: OSError, url: str) -> OSError:
    """Return the same kind of OSError with errno, message and URL, which filesystems may leave out."""
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
    if isinstance(error, FileExistsError):
        return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), url)
    if isinstance(error, IsADirectoryError):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), url)
    if isinstance(error, PermissionError) or _REFUSED.search(_words(error)):
        return _refused(error, url)
    if type(error).__name__ == _EXPIRED:
        return OSError(errno.EBUSY, "it was replaced while it was read", url)
    return connection_error(url, _words(error))


def _refused(error: Exception, url: str) -> PermissionError:
    return PermissionError(errno.EACCES, f"access was refused ({_words(error)}): check the credentials", url)


def _words(error: BaseException) -> str:
    """Return the message of an error, or its type if it has none, on one line."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return printable(" ".join(message.split()).rstrip(".") or type(error).__name__)
