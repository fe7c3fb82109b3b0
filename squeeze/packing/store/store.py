"""A store of models: a folder that keeps the tensors of many models by content, each once.

- `store.json` has the format.
- `objects` has coded tensors and other files, named after their hashes (objects.py).
- `models` has the list of files of each model (models.py). It is written last and linked into place.
- `temporary` has unfinished files.
- `lock` is held shared while a model is added, and alone while objects are deleted.

A process that is killed at any moment leaves a whole store, perhaps with objects of no model, which `gc` deletes. An
object is deleted only if no model and no object needs it and nobody is adding a model.
"""

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from squeeze.checkpoint.safetensors import Bytes
from squeeze.errors import DamagedError, FormatError, OptionError, SqueezeError, escaped, printable
from squeeze.packing import folder
from squeeze.packing.pack import Totals, check_level
from squeeze.packing.store.adding import Adding, Form, by_form, source_in
from squeeze.packing.store.models import Entry, File, Model, checked_name
from squeeze.packing.store.objects import Objects
from squeeze.packing.store.own import check_own
from squeeze.system import documents
from squeeze.system.limits import Limits
from squeeze.system.moving import in_the_way, sync
from squeeze.system.storage import remote
from squeeze.system.work import scratch_folder

__all__ = ["Listed", "Store", "is_store"]

_FORMAT = {"format": 1}
_DESCRIPTION = "store.json"
_OWN = (_DESCRIPTION, "models", "temporary", "objects", "lock")
_PIECE = 1 << 26  # bytes of a copied file in one object
_NAMED = 3


@dataclass(frozen=True)
class Listed:
    """A model of a store.

    size: bytes of its files. alone: bytes of objects that no other model needs, which `remove` and `gc` free.
    """

    name: str
    size: int
    alone: int


def is_store(path: Path) -> bool:
    """Return whether a folder of a disk is a store."""
    return not remote(path) and (path / _DESCRIPTION).is_file() and (path / "models").is_dir()


class Store:
    """A store in a folder of a disk."""

    def __init__(self, path: Path | str, limits: Limits | None = None):
        """Take the folder of a store; `add` creates it."""
        self.path, self._limits = Path(path), limits or Limits()
        self._models, self._temporary = self.path / "models", self.path / "temporary"
        self.objects = Objects(self.path / "objects", self._temporary, self._limits)

    def add(
        self,
        source: Path | str,
        name: str | None = None,
        *,
        base: str | None = None,
        level: str = "runtime",
        threads: int = 1,
        progress: Callable[[int], None] = lambda count: None,
    ) -> Totals:
        """Add a model, a folder or a file of tensors.

        Args:
            source: the model.
            name: its name in the store; by default that of the folder or file.
            base: the model of the store from which differences are stored. By default the one with the most tensors
                of the same names, dtypes and shapes.
            level: the level of packing.
            threads: threads that code.
            progress: called with the number of bytes done since the last call.

        Returns:
            The bytes of the model, and those that the store grew by.

        Raises:
            FormatError: if it is not a model, or packed.
            SqueezeError: if the store has the name already, or not the base.
        """
        source = Path(source)
        check_level(level)
        name = checked_name(source.resolve().name if name is None else name)
        contents = folder.contents_of(source, strict=False)
        self._create()
        with self._locked(fcntl.LOCK_SH):
            if (self._models / name).exists():
                raise in_the_way(self._models / name)
            bases = self._bases(base, contents.files)
            job = Adding(self.objects, level, bases, threads, progress)
            model = Model({label: job.file(path, label) for label, path in contents.files.items()})
            text = model.to_bytes()
            self._put(self._models / name, text)
        return Totals(model.size, job.written + len(text), contents.left_out, tuple(contents.notes))

    def names(self) -> list[str]:
        """Return the names of all models. Raises FormatError for a file whose name no model can have."""
        self._check()
        found = sorted(path.name for path in self._models.iterdir() if not path.name.startswith("."))
        try:
            return [checked_name(name) for name in found]
        except OptionError as error:
            raise FormatError(f"{escaped(str(self._models))}: {error}") from None

    def model(self, name: str) -> Model:
        """Return the files of a model. Raises SqueezeError if the store does not have it."""
        path = self._models / checked_name(name)
        self._check()
        check_own(self._models, path.name)
        if not path.is_file():
            known = ", ".join(self.names()[:_NAMED]) or "no model"
            raise SqueezeError(f"{escaped(str(self.path))} has no model {printable(repr(name))}: it has {known}")
        return Model.read(path, self._limits)

    def list(self) -> list[Listed]:
        """Return all models with their sizes."""
        needed = {name: self._closure(self.model(name).keys) for name in self.names()}
        found = []
        for name, keys in needed.items():
            others = set[str]().union(*(other for label, other in needed.items() if label != name))
            alone = sum(self.objects.place(key).stat().st_size for key in keys - others)
            found.append(Listed(name, self.model(name).size, alone))
        return found

    def size(self) -> int:
        """Return the bytes of all files of the store."""
        self._check()
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def get(
        self, name: str, target: Path | str, *, overwrite: bool = False, threads: int = 1, weights: bool = True
    ) -> Totals:
        """Restore a model to a folder or file, byte for byte.

        Args:
            name: the model's name in the store.
            target: the folder or file.
            overwrite: whether an existing one is replaced.
            threads: threads that decode.
            weights: whether files with tensors are restored. Without them a folder has config.json and the tokenizer,
                which a server needs that reads the weights from the store.

        Raises DamagedError if an object is damaged, LimitError if the limits do not allow the output, and SqueezeError
        if nothing would be left without weights.
        """
        target = Path(target)
        model = self.model(name)
        files = {label: file for label, file in model.files.items() if weights or not file.tensors}
        if not files:
            raise SqueezeError(f"model {printable(repr(name))} has only weights: restore it with them")
        self._limits.need_output(sum(file.size for file in files.values()))
        if not target.parent.is_dir():
            raise SqueezeError(f"the folder {target.parent} does not exist")
        if os.path.lexists(target) and not overwrite:
            raise in_the_way(target)
        with scratch_folder(target) as work, self._locked(fcntl.LOCK_SH):
            content = work / folder.CONTENT
            for label, file in files.items():
                path = folder.place(content, label)
                path.parent.mkdir(parents=True, exist_ok=True)
                self._restore(name, label, file, path, threads)
            folder.move_into_place(content, target, overwrite)
        keys = {key for file in files.values() for key in file.keys}
        size = sum(file.size for file in files.values())
        return Totals(size, sum(self.objects.place(key).stat().st_size for key in keys))

    def tensor(self, name: str, tensor: str) -> tuple[Entry, Bytes]:
        """Return a tensor of a model's safetensors: its description, and its bytes."""
        for file in self.model(name).files.values():
            for entry in file.tensors if file.is_safetensors else ():
                if entry.name == tensor:
                    return entry, self.objects.read(entry.key)
        raise SqueezeError(f"model {printable(repr(name))} has no tensor {printable(repr(tensor))}")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep `gc` and `remove` of other processes waiting while objects are read."""
        self._check()
        with self._locked(fcntl.LOCK_SH):
            yield

    def remove(self, name: str) -> None:
        """Remove a model. Its objects stay until `gc`."""
        self.model(name)
        with self._locked(fcntl.LOCK_EX):
            (self._models / name).unlink()
            sync(self._models)

    def gc(self) -> tuple[int, int]:
        """Delete the objects that no model needs; return their number and bytes.

        Raises DamagedError, and deletes nothing, if a model or an object that is needed cannot be read.
        """
        self._check()
        with self._locked(fcntl.LOCK_EX):
            needed = set[str]()
            for name in self.names():
                needed |= self._closure(self.model(name).keys)
            count = freed = 0
            for key in [key for key in self.objects.keys() if key not in needed]:  # noqa: SIM118
                path = self.objects.place(key)
                freed += path.stat().st_size
                path.unlink()
                count += 1
            for path in self._temporary.iterdir():
                if not path.is_dir():
                    path.unlink()
        return count, freed

    def verify(self, threads: int = 1) -> int:
        """Decode every object that a model needs; return their number.

        Raises DamagedError that names each damaged object with the models that need it.
        """
        self._check()
        users: dict[str, list[str]] = {}
        faults: dict[str, str] = {}
        for name in self.names():
            for key in self._closure(self.model(name).keys, faults):
                users.setdefault(key, []).append(name)
        for key in users:
            if key not in faults:
                try:
                    self.objects.verify(key, threads)
                except DamagedError as error:
                    faults[key] = str(error)
        if faults:
            told = [f"{fault} (needed by {', '.join(map(printable, users[key]))})" for key, fault in faults.items()]
            more = f"; and {len(told) - _NAMED} others" if len(told) > _NAMED else ""
            raise DamagedError(f"{escaped(str(self.path))}: {'; '.join(told[:_NAMED])}{more}: add the models again")
        return len(users)

    def _create(self) -> None:
        """Create the folders of the store. The file that makes it one is written last."""
        check_own(self.path, *_OWN)
        if self.path.is_dir() and any(self.path.iterdir()) and not (self.path / "models").is_dir():
            raise SqueezeError(f"{escaped(str(self.path))} is not a store and not empty: choose another folder")
        for place in (self.path, self._models, self._temporary, self.objects.path):
            place.mkdir(exist_ok=True)
        if not (self.path / _DESCRIPTION).exists():
            self._put(self.path / _DESCRIPTION, json.dumps(_FORMAT).encode())

    def _check(self) -> None:
        """Raise FormatError if the folder is not a store, or links lead out of it."""
        check_own(self.path, *_OWN)
        try:
            described = documents.read_object(self.path / _DESCRIPTION)
        except (OSError, FormatError):
            raise FormatError(f"{escaped(str(self.path))}: not a store: `squeeze store add` makes one") from None
        if described != _FORMAT:
            raise FormatError(f"{escaped(str(self.path))}: a store of another format: use a newer squeeze")

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        """Hold the lock of the store, shared or alone, waiting for others."""
        with (self.path / "lock").open("ab") as file:
            fcntl.flock(file, kind)
            yield

    def _put(self, target: Path, text: bytes) -> None:
        """Write a file, which appears complete or not at all. Raises SqueezeError if it exists."""
        descriptor, name = tempfile.mkstemp(dir=self._temporary)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            target.hardlink_to(name)
        except FileExistsError:
            if target.parent == self._models:
                raise in_the_way(target) from None
        finally:
            Path(name).unlink()
        sync(target.parent)

    def _bases(self, base: str | None, files: dict[str, Path]) -> dict[Form, str]:
        """Return the keys of the base's tensors by name, dtype and shape; nothing if there is no base."""
        if base is not None:
            return by_form(self.model(base))
        wanted = set[Form]()
        for label, path in files.items():
            source = source_in(path, label)
            if source:
                wanted |= {(one.name, one.dtype, one.shape) for one in source.file.tensors}
        best: dict[Form, str] = {}
        for name in self.names():
            found = by_form(self.model(name))
            if len(wanted & found.keys()) > len(wanted & best.keys()):
                best = found
        return best

    def _closure(self, keys: set[str], faults: dict[str, str] | None = None) -> set[str]:
        """Return keys with those of all bases.

        Args:
            keys: the keys.
            faults: where objects that cannot be read are noted, by key. None raises DamagedError for the first.
        """
        found, waiting = set[str](), list(keys)
        while waiting:
            key = waiting.pop()
            if key not in found:
                found.add(key)
                try:
                    base = self.objects.header(key).base
                except DamagedError as error:
                    if faults is None:
                        raise
                    faults[key], base = str(error), None
                waiting += [base] if base else []
        return found

    def _restore(self, name: str, label: str, file: File, path: Path, threads: int) -> None:
        """Write a file of a model and compare its hash."""
        try:
            digest, size = hashlib.sha256(), 0
            with path.open("xb") as writing:
                for piece in self._pieces(file, threads):
                    size += piece.size
                    if size > file.size:
                        raise DamagedError(f"{printable(label)} is larger than its {file.size:,} bytes")
                    digest.update(piece.data)
                    writing.write(piece.data)
        except DamagedError as error:
            raise DamagedError(f"{escaped(str(self.path))}: model {printable(name)}: {error}") from None
        if digest.hexdigest() != file.sha256:
            raise DamagedError(
                f"{escaped(str(self.path))}: model {printable(name)}: {printable(label)} has another SHA-256"
            )

    def _pieces(self, file: File, threads: int) -> Iterator[Bytes]:
        """Yield the bytes of a file in order. Raises DamagedError."""
        header, end, used = self.objects.read(file.header, threads), 0, 0
        for entry in file.tensors:
            gap = entry.begin - end
            if gap < 0 or used + gap > header.size:
                raise DamagedError("its list of tensors is damaged")
            yield header[used : used + gap]
            data = self.objects.read(entry.key, threads)
            yield data
            used, end = used + gap, entry.begin + data.size
        yield header[used:]
