"""Errors that a user can cause or fix. All are children of SqueezeError, and every message says what to do."""

_LONGEST = 200  # characters of a foreign text in a message


def printable(foreign: object) -> str:
    """Return a text from a file for a message: one line of at most 200 characters, with control characters escaped."""
    try:
        text = str(foreign)
    except RecursionError:  # lists within lists, as deep as JSON allows
        text = "..."
    return escaped(text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "...")


def escaped(text: str) -> str:
    """Return a text of any length on one line, with characters that cannot be printed escaped."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def drop_notes(error: BaseException, name: str) -> None:
    """Remove the notes of an exception that mention a name, such as a folder that was deleted."""
    if notes := getattr(error, "__notes__", None):
        notes[:] = [note for note in notes if name not in note]


class SqueezeError(Exception):
    """Base class of all errors that squeeze raises on purpose."""


class FormatError(SqueezeError):
    """The input is not a .sqz file or checkpoint of the expected format, or this version cannot read it."""


class DamagedError(FormatError):
    """The bytes of the input have changed: a checksum does not match, or the content is impossible."""


class TruncatedError(DamagedError):
    """The end of the input is missing."""


class LimitError(SqueezeError):
    """A file needs more memory or output than the limits allow.

    Raise the limit with `limits=squeeze.Limits(...)`, or on the command line with --memlimit or --max-output.
    """


class LevelError(SqueezeError, ValueError):
    """The compression level does not exist. It is a ValueError as well."""


class OptionError(SqueezeError, ValueError):
    """An option is unknown, has the wrong type, or is out of bounds. It is a ValueError as well."""


class StorageError(SqueezeError, OSError):
    """The connection to the store of a URL broke, also after retries. It is an OSError as well.

    Attributes:
        what_next: What the user can do, in words.
    """

    what_next = "run again"

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}; {self.what_next}"


class VerifyError(SqueezeError):
    """The output did not decode to the input. Nothing was replaced."""


class ModelError(SqueezeError):
    """A language model is missing, is not the one that the file needs, or has an architecture that squeeze cannot
    run.
    """


class DeviceError(SqueezeError):
    """A device does not exist, has too little memory, or does not compute exactly."""


class DictionaryError(SqueezeError):
    """A dictionary is missing, damaged, not the one that the file needs, or cannot be trained from the given samples.

    Attributes:
        is_named: Whether the message names the file that is wrong, which is not the input.
    """

    is_named = False


class PackageError(SqueezeError, ImportError):
    """An optional package is not installed; the message has the pip command. It is an ImportError as well."""


class QualityError(SqueezeError):
    """A compressed model is worse than the user allows. It was written nevertheless."""


class ClusterError(SqueezeError):
    """A Ray cluster does not exist, does not answer, or has lost workers again and again."""


class PolicyError(SqueezeError, ValueError):
    """A KV cache policy does not exist or does not fit the model. It is a ValueError as well."""
