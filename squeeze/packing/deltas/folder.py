"""A folder, on a disk or at a URL, through which messages reach receivers.

Each message is a file named after its number. It appears complete or not at all. A receiver that starts, or that has
lost messages, takes the last snapshot and the patches after it.
"""

import os
import tempfile
from collections import deque
from pathlib import Path

from squeeze.errors import FormatError, SqueezeError, escaped
from squeeze.packing.deltas.message import Message
from squeeze.packing.deltas.receiver import Receiver
from squeeze.system.moving import sync
from squeeze.system.storage import path_of, remote
from squeeze.system.upload import uploading

__all__ = ["Folder"]

_SNAPSHOT, _PATCH = ".snapshot", ".patch"
_DIGITS = 12


class Folder:
    """A folder of messages."""

    def __init__(self, place: Path | str):
        """Take a folder, or a URL of fsspec. A folder on a disk is created."""
        self.path = path_of(place)
        if not remote(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def publish(self, message: bytes) -> Path:
        """Write a message; return its path. Raises SqueezeError if another one has its number."""
        number, is_snapshot = Message.sequence_of(message)
        target = self.path / f"{number:0{_DIGITS}d}{_SNAPSHOT if is_snapshot else _PATCH}"
        if place := remote(target):
            with uploading(place, overwrite=False) as file:
                file.write(message)
            return target
        descriptor, name = tempfile.mkstemp(dir=self.path, prefix=".", suffix=".partial")
        written = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(message)
                file.flush()
                os.fsync(file.fileno())
            written.chmod(0o644)
            try:
                target.hardlink_to(written)  # unlike a rename, this replaces no file
            except FileExistsError:
                raise SqueezeError(f"{escaped(str(target))} exists: use one folder for each stream") from None
        finally:
            written.unlink(missing_ok=True)
        sync(self.path)
        return target

    def messages(self) -> list[tuple[int, bool, Path]]:
        """Return number, whether it is a snapshot, and path of each message, in order; a snapshot before a patch."""
        found = []
        for path in self.path.iterdir() if self.path.exists() else ():
            if path.suffix in (_SNAPSHOT, _PATCH) and path.name.removesuffix(path.suffix).isdecimal():
                found.append((int(path.name.removesuffix(path.suffix)), path.suffix == _SNAPSHOT, path))
        return sorted(found, key=lambda entry: (entry[0], not entry[1]))

    def update(self, receiver: Receiver) -> int:
        """Apply all messages that a receiver lacks; return their number.

        Raises:
            SqueezeError: if a patch is missing and no snapshot follows it, or a message is of another model.
            DamagedError: if a message is damaged. The weights are those of the message before.
        """
        applied, gone, missing = 0, set[Path](), deque(self._missing(receiver.sequence))
        while missing:
            path = missing.popleft()
            try:
                message = path.read_bytes()
            except FileNotFoundError:  # deleted since it was listed, as `prune` does after a snapshot
                if path in gone:
                    raise SqueezeError(f"{escaped(str(path))} cannot be read: it does not exist") from None
                gone.add(path)
                missing = deque(self._missing(receiver.sequence))
                continue
            _apply(receiver, message, path)
            applied += 1
        return applied

    def _missing(self, sequence: int | None) -> list[Path]:
        """Return the messages after a number: patches, or the last snapshot and the patches after it."""
        found = self.messages()
        if not found or (sequence is not None and found[-1][0] <= sequence):
            return []
        last, patches = found[-1][0], {number: path for number, is_snapshot, path in found if not is_snapshot}
        if sequence is not None and all(number in patches for number in range(sequence + 1, last + 1)):
            return [patches[number] for number in range(sequence + 1, last + 1)]
        for number, is_snapshot, path in reversed(found):
            if is_snapshot and number > (-1 if sequence is None else sequence):
                following = range(number + 1, last + 1)
                lost = next((one for one in following if one not in patches), last + 1)
                return [path, *(patches[one] for one in range(number + 1, lost))]
        after = "a receiver without weights" if sequence is None else f"message {sequence}"
        raise SqueezeError(f"{escaped(str(self.path))}: messages after {after} are missing: publish a snapshot")

    def prune(self) -> int:
        """Delete the messages before the last snapshot that can be read; return their number."""
        found = self.messages()
        for number, is_snapshot, path in reversed(found):
            if is_snapshot and _is_whole(path):
                old = [one for one in found if one[0] < number or (one[0] == number and not one[1])]
                for _, _, unneeded in old:
                    unneeded.unlink()
                return len(old)
        return 0


def _apply(receiver: Receiver, message: bytes, path: Path) -> None:
    """Apply a message. Errors name its path."""
    try:
        receiver.apply(message)
    except FormatError as error:
        raise type(error)(f"{escaped(str(path))}: {error}") from None
    except SqueezeError as error:
        raise SqueezeError(f"{escaped(str(path))}: {error}") from None


def _is_whole(path: Path) -> bool:
    try:
        Message.parse(path.read_bytes())
    except FormatError:
        return False
    return True
