"""What can go wrong that a user can cause or mend. Every message says what to do."""

_LONGEST = 200  # characters of a foreign text in a message


def printable(foreign: object) -> str:
    """What a file says, fit for a message: one line of at most 200 characters, with control codes escaped."""
    try:
        text = str(foreign)
    except RecursionError:  # lists within lists, as deep as JSON allows
        text = "..."
    return escaped(text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "...")


def escaped(text: str) -> str:
    """A text of any length on one line, with control codes and what is no character escaped."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def drop_notes(error: BaseException, name: str) -> None:
    """Remove the notes of an error that name a folder, such as one that is deleted or lies in a kept one."""
    if notes := getattr(error, "__notes__", None):
        notes[:] = [note for note in notes if name not in note]


class SqueezeError(Exception):
    """The parent of every error that squeeze raises on purpose."""


class FormatError(SqueezeError):
    """The input is not a .sqz file, or not one that this version can read."""


class DamagedError(FormatError):
    """The input is a .sqz file whose bytes have changed."""


class TruncatedError(DamagedError):
    """The input is a .sqz file whose end is missing."""


class LimitError(SqueezeError):
    """A file asks for more memory or output than the user allows."""


class LevelError(SqueezeError, ValueError):
    """The compression level does not exist, or not yet."""


class OptionError(SqueezeError, ValueError):
    """An option is not one that there is, not of its type, or out of its bounds."""


class StorageError(SqueezeError, OSError):
    """The storage of a URL broke off, and did not answer when it was asked again. It is an OSError, too.

    what_next: what its user can do, in words.
    """

    what_next = "run again"

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}; {self.what_next}"


class VerifyError(SqueezeError):
    """What was written did not decode to the input; nothing was replaced."""


class ModelError(SqueezeError):
    """A language model is missing, is not the one that the file needs, or is of a kind that squeeze cannot run."""


class DeviceError(SqueezeError):
    """A device is not there, has too little memory, or does not compute exactly."""


class DictionaryError(SqueezeError):
    """A dictionary is missing, damaged, or not the one that the file needs, or it cannot be made of what was given.

    is_named: whether the message names what is wrong, which is not the file at work.
    """

    is_named = False


class PackageError(SqueezeError, ImportError):
    """A package that an extra brings is not installed."""


class QualityError(SqueezeError):
    """A compressed model is worse than the user allows. It is written all the same."""


class ClusterError(SqueezeError):
    """A cluster is not there, or does not answer."""


class PolicyError(SqueezeError, ValueError):
    """A policy of the KV cache is not one that exists, or does not fit the model."""
