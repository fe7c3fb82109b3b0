"""Finding the other tensors that those of a packed file need: tensors of the base, and of files in the same folder."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from squeeze.checkpoint.safetensors import Bytes, Tensor, named
from squeeze.checkpoint.weight_files import MANIFEST
from squeeze.errors import DamagedError, FormatError, SqueezeError, escaped, printable
from squeeze.packing import container, shared
from squeeze.packing.chain import checkpoint_of, packed_files
from squeeze.packing.container import PackedFile
from squeeze.packing.fetch_cache import rereadable, spooled
from squeeze.packing.record import Record, naming
from squeeze.packing.running_hash import checksum_of
from squeeze.packing.shared import LITERAL, Joined, Table
from squeeze.packing.tensors.content import Content, InFile, Section, whole
from squeeze.system.binary import Positional
from squeeze.system.limits import Limits
from squeeze.system.parallel import LARGE
from squeeze.system.storage import join_untrusted

__all__ = ["BaseTensors", "Others", "needing"]

_NAMED = 3  # tensors listed in a message


class BaseTensors(Protocol):
    """The tensors of a base (base.py)."""

    def content_for(self, record: Record, name: str, scope: str, opened: ExitStack) -> Content | None:
        """Return the bytes that a difference needs, or None for a tensor coded in another way."""


class Others:
    """The other tensors that those of one packed file need."""

    def __init__(self, packed: PackedFile, base: BaseTensors | None, limits: Limits):
        self._packed, self._base, self._limits = packed, base, limits
        self._files: dict[str, tuple[PackedFile, dict[str, Record]]] = {}

    def for_record(self, name: str, record: Record, scope: str = "") -> Bytes | None:
        """Return the bytes that a tensor needs to be decoded, or None if it needs none.

        Args:
            name: the tensor's name.
            record: its record.
            scope: name of the file of torch's in its folder that holds the tensor.

        Raises DamagedError if another tensor is damaged, and SqueezeError if it is missing.
        """
        if not (record.coding.is_shared or record.coding.is_difference):
            return None
        with ExitStack() as opened:
            content = self.content_for(record, name, scope, opened)
            with naming(name):
                return None if content is None else whole(content)

    def content_for(self, record: Record, name: str, scope: str, opened: ExitStack) -> Content | None:
        """Return the same as `for_record`, to be read in parts; files are closed with `opened`."""
        if not record.coding.is_shared:
            return self._base.content_for(record, name, scope, opened) if self._base else None
        with naming(name):
            table = self._table(self._packed.file.by_name[name], record, opened)
            sources = [self._source(*source, scope, opened) for source in table.sources]
            runs = [run for run in table.runs if run.source != LITERAL]
            return Joined([_section(sources[run.source], run.begin, run.size) for run in runs])

    def payload_of(self, tensor: Tensor, record: Record, opened: ExitStack) -> tuple[Content, Record] | None:
        """Return the payload of the tensor that a whole tensor repeats, and how to decode it, or None.

        A loaded model keeps that payload. The checksum is that of the tensor itself.
        """
        if not record.coding.is_shared:
            return None
        with naming(tensor.name):
            table = self._table(tensor, record, opened)
            if not table.is_whole or table.runs[0].begin:
                return None
            packed, known = self._file(table.sources[0][0])
        other, name = known.get(table.sources[0][1]), table.sources[0][1]
        if other is None or not other.coding.stays_coded or (other.layout, other.size) != (record.layout, record.size):
            return None
        place = packed.file.by_name[name]
        file = Positional(opened.enter_context(packed.file.path.open("rb")))
        found = Record(record.dtype, record.shape, other.coding, record.checksum, record.length)
        return rereadable(file, place.begin, place.size, opened), found

    @contextmanager
    def explaining(self, name: str, record: Record, scope: str) -> Iterator[None]:
        """Add to a DamagedError about a tensor which other tensor causes it, and which others need that one.

        Args are those of `for_record`.
        """
        try:
            yield
        except DamagedError as error:
            cause = self._cause(name, record, scope) if record.coding.is_shared else ""
            raise DamagedError(f"{error}{cause or needing(self._packed.file.path, name, self._limits)}") from None

    def _cause(self, name: str, record: Record, scope: str) -> str:
        """Return a text that names the damaged tensor that another one repeats, or ""."""
        with ExitStack() as opened:
            try:
                table = self._table(self._packed.file.by_name[name], record, opened)
                for file, source in table.sources:
                    packed, known = self._file(file)
                    if not _is_whole(self._source(file, source, scope, opened), known[source]):
                        needed = needing(packed.file.path, source, self._limits)
                        return f": {named(source)}{_in(file)} is damaged{needed}"
            except (OSError, SqueezeError):
                return ""
        return ""

    def bases(self) -> set[tuple[str, ...]]:
        """Return the hashes of the bases of other files that this one needs. Faults are told when a tensor is read."""
        found = set[tuple[str, ...]]()
        for tensor, record in zip(self._packed.file.tensors, self._packed.description.records, strict=True):
            if not record.coding.is_shared:
                continue
            with ExitStack() as opened, suppress(OSError, SqueezeError):
                for file, name in self._table(tensor, record, opened).sources:
                    packed, known = self._file(file)
                    if name in known and known[name].coding.is_difference:
                        found.add(packed.description.base)
        return found

    def _table(self, tensor: Tensor, record: Record, opened: ExitStack) -> Table:
        file = Positional(opened.enter_context(self._packed.file.path.open("rb")))
        return shared.read(InFile(file, tensor.begin, tensor.size), record.size)[0]

    def _source(self, file: str, name: str, scope: str, opened: ExitStack) -> Content:
        """Return the bytes of another tensor, which are not compared with its checksum."""
        packed, known = self._file(file)
        if name not in known:
            raise DamagedError(f"{named(name)}{_in(file)} is missing, and others repeat it")
        record, place = known[name], packed.file.by_name[name]
        if record.coding.is_shared:
            raise DamagedError(f"{named(name)}{_in(file)} is repeated, but repeats another one itself")
        if record.coding.is_difference and self._base is None:
            raise DamagedError(f"{named(name)}{_in(file)}, which others repeat, is a difference from a base")
        reading = Positional(opened.enter_context(packed.file.path.open("rb")))
        payload = rereadable(reading, place.begin, place.size, opened)
        where = (file or scope) if packed.is_torch else ""
        base = self._base.content_for(record, name, where, opened) if self._base else None
        try:
            content = record.decode_parts(payload, base, 1)
        except DamagedError as error:
            raise DamagedError(f"{named(name)}{_in(file)}, which others repeat: {error}") from None
        return spooled(content, opened) if record.coding.is_slow else content

    def _file(self, name: str) -> tuple[PackedFile, dict[str, Record]]:
        """Return a packed file of the folder, with its records by name; the empty name is that of this file."""
        if name not in self._files:
            packed = self._opened(name) if name else self._packed
            pairs = zip(packed.file.tensors, packed.description.records, strict=True)
            self._files[name] = packed, {tensor.name: record for tensor, record in pairs}
        return self._files[name]

    def _opened(self, name: str) -> PackedFile:
        path = self._packed.file.path
        root = checkpoint_of(path)
        if root == path:  # without a manifest, as loaders fetch the files of a repository, a shard is next to it
            root = path.parent
            if "/" in name or not join_untrusted(root, name).is_file():
                raise SqueezeError(
                    f"its tensors repeat those of {printable(repr(name))}: leave it in its folder, with the manifest"
                )
        try:
            packed = container.read(join_untrusted(root, name), self._limits)
        except FileNotFoundError:
            raise DamagedError(f"{printable(name)} is missing from the folder, and others repeat its tensors") from None
        except FormatError as error:
            raise DamagedError(f"{printable(name)}, whose tensors others repeat: {error}") from None
        container.check_limits(packed, self._limits, LARGE)
        return packed


def _is_whole(content: Content, record: Record) -> bool:
    """Return whether a tensor decodes to its checksum."""
    try:
        return checksum_of(content, 1) == record.checksum
    except DamagedError:
        return False


def _in(file: str) -> str:
    return f" of {printable(file)}" if file else ""


def _section(content: Content, begin: int, size: int) -> Content:
    if begin + size > content.size:
        raise DamagedError("the table of bytes that it shares with other tensors is damaged")
    return Section(content, begin, size)


def needing(path: Path, name: str, limits: Limits) -> str:
    """Return a text that names the tensors of a packed checkpoint that repeat one of the file at `path`, or "".

    Args:
        path: the packed file.
        name: the tensor's name, or "" for any.
        limits: bounds of memory.
    """
    try:
        found = [escaped(one) for one in _needing(path.absolute(), name, limits)]
    except (OSError, SqueezeError):
        return ""
    shown = [*found[:_NAMED], *([f"{len(found) - _NAMED} others"] if len(found) > _NAMED else [])]
    return f" (also needed by {', '.join(shown)})" if found else ""


def _needing(path: Path, name: str, limits: Limits) -> Iterator[str]:
    """Yield the names of the tensors that repeat one of a file. Args are those of `needing`."""
    root = _root_of(path)
    for packed in packed_files(root, limits):
        is_own = packed.file.path == path
        file = "" if is_own else path.relative_to(root).as_posix()
        with packed.file.path.open("rb") as opened:
            reading = Positional(opened)
            for tensor, record in zip(packed.file.tensors, packed.description.records, strict=True):
                if record.coding.is_shared:
                    table, _ = shared.read(InFile(reading, tensor.begin, tensor.size), record.size)
                    if any(source[0] == file and name in ("", source[1]) for source in table.sources):
                        where = "" if is_own else f" of {printable(packed.file.path.relative_to(root).as_posix())}"
                        yield f"{named(tensor.name)}{where}"


def _root_of(path: Path) -> Path:
    """Return the packed folder that holds a file, which may be missing, or the file itself."""
    return next((parent for parent in path.parents if (parent / MANIFEST).is_file()), path)
