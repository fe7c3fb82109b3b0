"""Kinds of content, which choose the models of a block or of a part of one.

The base class of media is here as well. These are kinds of content, such as images, with a model of their own at every
level.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np  # which `squeeze info` does without

__all__ = ["ABSOLUTE", "CODES", "Content", "Medium", "Progress", "Region"]

Progress = Callable[[int], None] | None
ABSOLUTE = (1,)  # the form of machine code whose operands are absolute already, so that it has no filter
# Kinds of code of other machines than x86, with the number that numerics/bitmodels/risc.py has for each.
CODES = {
    "SPARC code": 2,
    "PowerPC code": 3,
    "MIPS code": 4,
    "ARM code": 5,
    "AArch64 code": 6,
    "RISC-V code": 7,
    "z/Architecture code": 8,
}


@dataclass(frozen=True)
class Content:
    """The kind of content that a block seems to hold, which chooses its contexts.

    Attributes:
        kind: Its name, such as "text".
        record: The record length of a table or of cells in bytes, that of an instruction of CODES, or 0.
        form: What the model of a medium must know, such as the layout of an image; ABSOLUTE or empty for "executable",
            and empty for other kinds.
    """

    kind: str
    record: int = 0
    form: tuple[int, ...] = ()

    @property
    def is_filtered(self) -> bool:
        """True for machine code whose operands a filter makes absolute."""
        return self.kind == "executable" and self.form != ABSOLUTE

    def __str__(self) -> str:
        return f"{self.kind} {self.record}" if self.record else self.kind


Region = tuple[int, int, Content]  # (start, end, content) of bytes


class Medium(ABC):
    """A kind of content with a model of its own: the kind of its blocks, its name, and the module that codes it."""

    block: int
    kind: str
    module: str  # that codes it, with functions `decode` and `memory` as those of the class

    def coder(self) -> ModuleType:
        """Import the module that codes it, whose compiled code takes a moment to load that other files do not need."""
        return import_module(self.module)

    @abstractmethod
    def find(self, data: "np.ndarray") -> list[Region]:
        """Return the regions of uint8 `data` that headers name, in order and apart from each other."""

    def guess(self, data: "np.ndarray") -> Content | None:
        """Return the content of uint8 `data` that has no header and seems to be of this medium, or None."""
        return None

    def joins(self, size: int, content: Content) -> bool:
        """Return whether `size` bytes of a content may be followed by others of the same content."""
        return False

    def likeness(self, data: "np.ndarray", content: Content) -> tuple[int, ...]:
        """Return what uint8 `data` has in common with others of its content that it is joined with."""
        return ()

    def name_of(self, begin: bytes) -> str:
        """Return the name of the content of a payload for people, from its first bytes."""
        return self.kind

    def sample(self, size: int, content: Content, most: int) -> Region:
        """Return a region that stands for all of `size` bytes of a content, of about `most` bytes if that is possible.

        Its content is that of the region alone.
        """
        return 0, size, content

    def coded_size(self, data: "np.ndarray", sample: Region, level: int) -> int:
        """Return the bytes in which a sample of uint8 `data` would be coded, or its own if these are no more.

        Args:
            data: the bytes of which `sample` gave a region.
            sample: the region, with the content of it alone.
            level: number of the level.
        """
        start, end, content = sample
        coded = self.encode(data[start:end], content, level)
        return end - start if coded is None else len(coded)

    @abstractmethod
    def encode(self, data: "np.ndarray", content: Content, level: int, progress: Progress = None) -> bytes | None:
        """Return the payload of uint8 `data`, or None if it is not shorter.

        Args:
            data: uint8 [n].
            content: its content, with the form that `find` or a wrapper gave.
            level: number of the level.
            progress: is called with the number of raw bytes done since its last call.
        """

    def decode(self, payload: bytes, length: int, progress: Progress = None) -> "np.ndarray":
        """Return the uint8 [length] of a payload.

        Raises:
            DamagedError: if the payload is invalid.
        """
        data: np.ndarray = self.coder().decode(payload, length, progress)
        return data

    def memory(self, length: int) -> int:
        """Estimate the memory in bytes of coding or decoding `length` bytes, apart from these and their payload."""
        return int(self.coder().memory(length))
