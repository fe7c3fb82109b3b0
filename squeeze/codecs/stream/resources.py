"""What a user gives besides the data: threads, a dictionary, a language model and how to run it."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypedDict

from squeeze.errors import DictionaryError, printable
from squeeze.system.limits import Limits

if TYPE_CHECKING:
    from squeeze.codecs.stream.dictionary import Dictionary

DictionarySource: TypeAlias = "Dictionary | str | os.PathLike[str] | None"
# What is built in, by name: as the level has it for what a block seems to hold, nothing, or as it has it for text.
AUTO, NONE, TEXT = BUILT_IN = ("auto", "none", "text")


@dataclass(frozen=True)
class Resources:
    """For restoring. All may be left out: None is one thread, a language model that is found without, no dictionary.

    `limits` are those of one file: what may be taken is looked up once.
    """

    threads: int | None = None
    model: str | os.PathLike[str] | None = None  # where the language model lies
    dictionary: DictionarySource = None
    limits: Limits = field(default_factory=Limits)
    adapter: str | os.PathLike[str] | None = None  # of the language model
    device: str = "cpu"  # that runs it


@dataclass(frozen=True)
class LanguageOptions:
    """Options of the levels that use a language model; None is what the level chooses."""

    model: str | os.PathLike[str] | None = None  # where it lies; None: the bundled one
    lanes: int | None = None
    window: int | None = None
    backend: str | None = None  # None: exact
    adapter: str | os.PathLike[str] | None = None  # where it lies, or "none"; None: that of the bundled model
    device: str = "cpu"  # "auto", "cpu", "cuda" or "cuda:N": it changes nothing but the time that this takes

    @property
    def path(self) -> Path | None:
        """Of the model."""
        return None if self.model is None else Path(self.model)


class LanguageKeywords(TypedDict, total=False):
    """The fields of LanguageOptions, for the type of keyword arguments."""

    model: str | os.PathLike[str] | None
    lanes: int | None
    window: int | None
    backend: str | None
    adapter: str | os.PathLike[str] | None
    device: str


def built_in_name(source: DictionarySource) -> str | None:
    """The name in place of a dictionary of the user's own, if it is one; None stands for "auto"."""
    if source is None:
        return AUTO
    return source if isinstance(source, str) and source in BUILT_IN else None


def as_dictionary(source: DictionarySource, limits: Limits | None = None) -> "Dictionary | None":
    """The dictionary that a user named, by itself or by the path of its file; None for what is built in. Raises
    DictionaryError or LimitError."""
    if source is None or built_in_name(source):
        return None
    # Start-up: a dictionary brings the models of levels 4 to 6, which no other use of a stream needs at once.
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
    """Return the dictionary of a file whose header names one that begins with these digits.

    Args:
        identity: hexadecimal digits.
        resources: has the dictionary, if there is one.
        written: what the file's header makes of a dictionary's whole identity.

    Raises DictionaryError or LimitError.
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
    """Bytes read and written; `damage` says what a salvage could not restore."""

    raw: int
    coded: int
    damage: tuple[str, ...] = ()
