"""What shards are called: a path or URL whose name holds {} where the number goes."""

import re
from dataclasses import dataclass
from pathlib import Path

from squeeze.errors import OptionError, SqueezeError
from squeeze.system.storage import remote

__all__ = ["Template"]

_NUMBER = re.compile(r"\{(?::0(\d)d?)?\}")


@dataclass(frozen=True)
class Template:
    """{} stands for 0, 1, ..., and {:06d} for 000000, 000001, .... Raises OptionError for any other name."""

    place: Path

    def __post_init__(self) -> None:
        if len(_NUMBER.findall(self.place.name)) != 1:
            raise OptionError(
                f"{self.place}: the name of a shard holds {{}} where its number goes, as in part-{{}}.tar.sqz"
            )

    def path(self, number: int) -> Path:
        """Of the shard with a number."""
        name = _NUMBER.sub(lambda found: f"{number:0{found[1] or 1}d}", self.place.name)
        return self.place.with_name(name)

    def made(self, name: str) -> bool:
        """Whether a whole name, as a manifest has it, is that of a shard."""
        whole = str(self.place.with_name(_NUMBER.sub("\0", self.place.name)))
        return re.fullmatch("[0-9]+".join(map(re.escape, whole.split("\0"))), name) is not None

    @property
    def dictionary(self) -> Path:
        """Of the shards, beside them: part-dictionary.sqzp for part-{}.tar.sqz."""
        return self.place.with_name(f"{self._before}dictionary.sqzp")

    @property
    def manifest(self) -> Path:
        """Of the run: part-manifest.jsonl, beside shards on this machine, and for URLs in the current folder."""
        name = f"{self._before}manifest.jsonl"
        return Path(name) if remote(self.place) else self.place.with_name(name)

    @property
    def _before(self) -> str:
        return self.place.name[: self.place.name.index("{")]

    def check(self, root: Path) -> None:
        """Raises SqueezeError where shards would lie in the folder that they are made of."""
        if self.place.parent.resolve().is_relative_to(root.resolve()):
            raise SqueezeError(f"{self.place.parent} lies in {root}, whose files go into the shards: write elsewhere")
