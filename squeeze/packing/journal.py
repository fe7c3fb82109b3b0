"""Which checkpoints of a training run were packed into a folder: a file in it, so that a run goes on after a stop, and
packs nothing again that went by retention."""

import json
import re
from pathlib import Path

from squeeze.errors import FormatError, SqueezeError, printable
from squeeze.system import files
from squeeze.system.json_object import read_object
from squeeze.system.names import component

__all__ = ["NAME", "Journal", "group", "order"]

NAME = ".squeeze-follow.json"
_FORMAT = 1
_SCHEMA = {"format": int, "packed": [str]}
_PARTS = re.compile(r"(\D*)(\d*)")


def order(name: str) -> list[tuple[str, int]]:
    """What sorts the names of a run's checkpoints: checkpoint-900 comes before checkpoint-1000."""
    return [(text, int(digits or -1)) for text, digits in _PARTS.findall(name)]


def group(name: str) -> str:
    """What the names of one kind of checkpoint have in common."""
    return re.sub(r"\d+", "#", name)


class Journal:
    """The names of all that was packed into `target`; some of it may be gone."""

    def __init__(self, target: Path):
        """Raises SqueezeError where the file is damaged."""
        self._target, self._path = target, target / NAME
        self.packed: list[str] = []
        if not self._path.is_file():
            return
        try:
            described = read_object(self._path, schema=_SCHEMA)
            if described["format"] != _FORMAT:
                raise FormatError(f"format {described['format']} is unknown")
            if hidden := [name for name in described["packed"] if component(name).startswith(".")]:
                raise FormatError(f"{printable(repr(hidden[0]))} is hidden, and never packed")
        except FormatError as error:
            why = str(error).removeprefix(f"{self._path}: ")
            raise SqueezeError(
                f"{self._path}: is damaged: {why}: delete it, and what is packed is compared instead"
            ) from None
        self.packed = described["packed"]

    def note(self, name: str) -> None:
        self.packed.append(name)
        with files.replacing(self._path) as file:
            file.write(json.dumps({"format": _FORMAT, "packed": self.packed}, indent=1).encode())

    def present(self) -> list[str]:
        """Those that are still there, the earliest first."""
        return sorted((name for name in self.packed if (self._target / name).exists()), key=order)

    def before(self, name: str) -> str | None:
        """The one that comes before a checkpoint of this name, of the same kind."""
        return max(self.earlier(name), key=order, default=None)

    def earlier(self, name: str) -> list[str]:
        """Those of the same kind that come before, and are still there."""
        return [one for one in self.present() if group(one) == group(name) and order(one) < order(name)]
