"""Options that callers pass besides the data, and the totals that they get.

The options are threads, a dictionary, and a language model with the way to run it.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypedDict

from squeeze.errors import DictionaryError, printable
from squeeze.system.limits import Limits

if TYPE_CHECKING:
    from squeeze.codecs.stream.contents import Contents
    from squeeze.codecs.stream.dictionary import Dictionary

DictionarySource: TypeAlias = "Dictionary | str | os.PathLike[str] | None"
# Built-in weights by name: those of a block's kind of content, none, or those of text.
AUTO, NONE, TEXT = BUILT_IN = ("auto", "none", "text")


@dataclass(frozen=True)
class Resources:
    """Options of decompression; the defaults are one thread, a language model that is found by itself, and no
    dictionary.

    `limits` are those of one file: free memory is measured once.
    """

    threads: int | None = None
    model: str | os.PathLike[str] | None = None  # path of the language model
    dictionary: DictionarySource = None
    limits: Limits = field(default_factory=Limits)
    adapter: str | os.PathLike[str] | None = None  # path of its adapter
    device: str = "cpu"  # device that runs it


@dataclass(frozen=True)
class LanguageOptions:
    """Options of the levels with a language model; None is the level's choice."""

    model: str | os.PathLike[str] | None = None  # path; None: the bundled model
    lanes: int | None = None
    window: int | None = None
    backend: str | None = None  # None: exact
    adapter: str | os.PathLike[str] | None = None  # path or "none"; None: that of the bundled model
    device: str = "cpu"  # "auto", "cpu", "cuda" or "cuda:N"; it changes the time alone

    @property
    def path(self) -> Path | None:
        """The path of the model."""
        return None if self.model is None else Path(self.model)


class LanguageKeywords(TypedDict, total=False):
    """The fields of LanguageOptions, as the type of keyword arguments."""

    model: str | os.PathLike[str] | None
    lanes: int | None
    window: int | None
    backend: str | None
    adapter: str | os.PathLike[str] | None
    device: str


class Keywords(LanguageKeywords, total=False):
    """Other keyword arguments of `compress_stream`."""

    parse: bool


class StreamKeywords(Keywords, total=False):
    """Keyword arguments of `compress_stream` that are passed on."""

    long: bool | int | None


def built_in_name(source: DictionarySource) -> str | None:
    """Return the name of built-in weights if a source is one, "auto" for None, else None."""
    if source is None:
        return AUTO
    return source if isinstance(source, str) and source in BUILT_IN else None


def as_dictionary(source: DictionarySource, limits: Limits | None = None) -> "Dictionary | None":
    """Return the dictionary that a user passed, or read its file; None for built-in weights.

    Raises:
        DictionaryError: if the file is missing or not a dictionary.
        LimitError: if it takes too much memory.
    """
    if source is None or built_in_name(source):
        return None
    # The models of levels 4 to 6 take a tenth of a second to load, which streams without a dictionary save.
    from squeeze.codecs.stream.dictionary import Dictionary

    if isinstance(source, Dictionary):
        return source
    try:
        return Dictionary.read(source, limits=limits)
    except FileNotFoundError as error:
        if not re.fullmatch(r"[\w-]+", name := str(source)):
            raise
        known = f"{', '.join(BUILT_IN[:-1])} or {BUILT_IN[-1]}"
        raise _named(
            f"there is no dictionary {printable(name)!r}: give {known}, or a file of `squeeze train`"
        ) from error
    except DictionaryError as error:
        raise _named(f"{printable(os.fspath(source))}: {error}") from error


def _named(message: str) -> DictionaryError:
    error = DictionaryError(message)
    error.is_named = True
    return error


def needed_dictionary(
    identity: str, resources: Resources, written: Callable[[str], str] = lambda identity: identity
) -> "Dictionary":
    """Return the dictionary that a file's header names.

    Args:
        identity: first hexadecimal digits of its identity, as the header has them.
        resources: has the dictionary, if there is one.
        written: maps a whole identity to the digits of a header.

    Raises:
        DictionaryError: if it is missing or another one.
        LimitError: if it takes too much memory.
    """
    dictionary, digits = as_dictionary(resources.dictionary, resources.limits), printable(identity[:8])
    if dictionary is None:
        raise DictionaryError(f"the file needs the dictionary {digits}: name it with `dictionary`")
    if not written(dictionary.identity).startswith(identity):
        found = written(dictionary.identity)[: len(digits)]
        raise DictionaryError(f"the file needs the dictionary {digits}, and this is {found}")
    return dictionary


@dataclass(frozen=True)
class Totals:
    """Bytes read and written; `damage` lists what a salvage could not restore, and `opened` what was opened."""

    raw: int
    coded: int
    damage: tuple[str, ...] = ()
    opened: "Contents | None" = None
