"""Which files of a checkpoint are coded, and what their tensors are: safetensors, and the files of torch.save and of
torch.distributed.checkpoint, of which nothing is run. All others are copied.
"""

from dataclasses import dataclass
from pathlib import Path

from squeeze.checkpoint import safetensors as tensorfile, torch_file
from squeeze.checkpoint.safetensors import TensorFile
from squeeze.errors import FormatError, LimitError, escaped, printable
from squeeze.system.limits import Limits

__all__ = ["CODED", "INDEX", "SUFFIX", "Source", "may_be_coded", "note_of_copy", "source_of"]

SUFFIX = ".safetensors"
INDEX = ".safetensors.index.json"
CODED = (SUFFIX, *torch_file.SUFFIXES)
_LEAST = 1 << 16  # bytes of storages from which on a file of torch's is coded in a folder
_NAMED = 3  # names that a note has room for


@dataclass(frozen=True)
class Source:
    """A file that is coded. note: what its user should know of it."""

    file: TensorFile
    is_torch: bool = False
    note: str = ""


def may_be_coded(name: str) -> bool:
    """By the name; the empty one is that of a file that was named itself."""
    return not name or name.endswith(CODED)


def source_of(path: Path, alone: bool, limits: Limits | None = None, strict: bool = False) -> Source | None:
    """What is coded of a file; None where it is copied. alone: it is no part of a folder, and coded whatever it is.

    Raises FormatError where a file that should be one of safetensors is none, and LimitError where reading its header
    takes more memory than `limits` allow; strict: the pickles of a file of torch's, too, which is plain bytes else.
    """
    if path.suffix == SUFFIX:
        return Source(tensorfile.read(path, limits))
    if path.suffix not in torch_file.SUFFIXES:
        return None
    try:
        found = torch_file.read(path, limits)
    except (FormatError, LimitError) as error:
        if strict and isinstance(error, LimitError):
            raise LimitError(f"{escaped(str(path))}: {error}") from None
        note = f"{escaped(str(path))}: {error}: it is packed as plain bytes"
        return Source(torch_file.plain(path), True, note) if alone else None
    if not alone and found.coded < _LEAST:
        return None
    return Source(found.file, True, _warning(path, found.can_run))


def note_of_copy(path: Path) -> str:
    """What the user should know of a file in a folder that is copied."""
    if path.suffix in torch_file.SUFFIXES:
        try:
            torch_file.read(path)
        except torch_file.CompressedError as error:
            return f"{escaped(str(path))}: {error}: it is copied"
        except (FormatError, LimitError):
            return ""
    return ""


def _warning(path: Path, names: tuple[str, ...]) -> str:
    if not names:
        return ""
    shown = ", ".join(map(printable, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
    return f"{escaped(str(path))}: names {shown}, which may run code when it is loaded; nothing of it was run"
