"""The files of a checkpoint that are coded: safetensors, GGUF, torch.save and torch.distributed.checkpoint.

No code in them is run. All other files are copied.
"""

from dataclasses import dataclass
from pathlib import Path

from squeeze.checkpoint import gguf_file, safetensors as tensorfile, torch_file
from squeeze.checkpoint.safetensors import TensorFile
from squeeze.errors import FormatError, LimitError, escaped, printable
from squeeze.system.limits import Limits

__all__ = ["CODED", "INDEX", "SUFFIX", "Source", "may_be_coded", "note_of_copy", "source_of"]

SUFFIX = ".safetensors"
INDEX = ".safetensors.index.json"
CODED = (SUFFIX, *torch_file.SUFFIXES, gguf_file.SUFFIX)
_LEAST = 1 << 16  # bytes of storages: smaller files of torch in a folder are copied
_NAMED = 3  # names listed in a note


@dataclass(frozen=True)
class Source:
    """A file that is coded.

    is_torch: whether other bytes are between its tensors, as in files of torch and GGUF. note: a message for the user.
    """

    file: TensorFile
    is_torch: bool = False
    note: str = ""


def may_be_coded(name: str) -> bool:
    """Return whether a file may be coded, judged by its name; the empty name is a checkpoint of one file."""
    return not name or name.endswith(CODED)


def source_of(path: Path, is_single: bool, limits: Limits | None = None, strict: bool = False) -> Source | None:
    """Return the tensors of a file, or None if the file is copied.

    Args:
        path: the file.
        is_single: whether it was named itself, so that it is coded whatever it holds.
        limits: bounds of memory.
        strict: also raise LimitError for the pickles of a file of torch, instead of taking it as plain bytes.

    Raises FormatError if a .safetensors file is invalid, and LimitError if reading its header takes too much memory.
    """
    if path.suffix == SUFFIX:
        return Source(tensorfile.read(path, limits))
    if path.suffix == gguf_file.SUFFIX:
        return _gguf_source(path, is_single, limits)
    if path.suffix not in torch_file.SUFFIXES:
        return None
    try:
        found = torch_file.read(path, limits)
    except (FormatError, LimitError) as error:
        if strict and isinstance(error, LimitError):
            raise LimitError(f"{escaped(str(path))}: {error}") from None
        note = f"{escaped(str(path))}: {error}: it is packed as plain bytes"
        return Source(torch_file.plain(path), True, note) if is_single else None
    if not is_single and found.coded < _LEAST:
        return None
    return Source(found.file, True, _warning(path, found.can_run))


def _gguf_source(path: Path, is_single: bool, limits: Limits | None) -> Source | None:
    try:
        return Source(gguf_file.read(path, limits), True)
    except FormatError as error:
        note = f"{escaped(str(path))}: {error}: it is packed as plain bytes"
        return Source(torch_file.plain(path), True, note) if is_single else None


def note_of_copy(path: Path) -> str:
    """Return a message about a file in a folder that is copied, or ""."""
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
    return f"{escaped(str(path))}: names {shown}, which may run code when the file is loaded; packing ran none"
