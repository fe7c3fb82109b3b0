"""Typical launches of all Triton kernels: each folder with a kernel.py declares its own in a launches.py beside it."""

import importlib
from collections.abc import Iterator
from pathlib import Path

from squeeze.fused.launch import Launch, meta, operations

__all__ = ["Launch", "every", "folders", "meta", "operations"]


def folders() -> list[Path]:
    """Those with a kernel.py: of the network in exact arithmetic first, each room in the order of names."""
    room = Path(__file__).parent
    return [path.parent for name in ("fused", "kernels") for path in sorted((room.parent / name).glob("*/kernel.py"))]


def every() -> Iterator[Launch]:
    """Of all folders. Needs triton."""
    for folder in folders():
        yield from importlib.import_module(f"squeeze.{folder.parent.name}.{folder.name}.launches").launches()
