"""The formats, by the names that `python -m tests.fuzz` knows them by: where each is, and what it is made with."""

from importlib import import_module
from pathlib import Path
from typing import Any

from tests.fuzz.judging import Format

_FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "sqz-1": ("sqz", {"level": 1}),
    "sqz-3": ("sqz", {"level": 3}),
    "sqz-5": ("sqz", {"level": 5}),
    "sqz-6": ("sqz", {"level": 6}),
    "sqz-8": ("sqz", {"level": 8}),
    "sqz-short": ("short", {}),
    "sqz-opened": ("opened", {}),
    "sqz-repeats": ("repeats", {}),
    "sqz-jpeg": ("jpeg", {}),
    "sqz-image": ("image", {}),
    "opening": ("opening", {}),
    "sqz-programs": ("programs", {}),
    "sqz-sound-1": ("sound", {"level": 1}),
    "sqz-sound-4": ("sound", {"level": 4}),
    "sqz-array-1": ("array", {"level": 1}),
    "sqz-array-4": ("array", {"level": 4}),
    "dictionary": ("dictionary", {}),
    "packed": ("packed", {}),
    "packed-grid": ("packed_kinds", {"kind": "grid"}),
    "packed-gguf": ("packed_kinds", {"kind": "gguf"}),
    "packed-shared": ("packed_kinds", {"kind": "shared"}),
    "store": ("store", {}),
    "kv": ("kv", {}),
    "gguf": ("gguf", {}),
    "safetensors": ("safetensors", {}),
    "config": ("config", {}),
    "index": ("index", {}),
    "recipe": ("recipe", {}),
    "torch": ("torchfile", {}),
    "members": ("members", {}),
    "manifest": ("manifest", {}),
    "journal": ("journal", {}),
    "report": ("report", {}),
    "deltas": ("deltas", {}),
}
NAMES = tuple(_FORMATS)


def make(name: str, folder: Path) -> Format:
    """A format with its samples, for which it may use the folder. All code that it needs is imported and compiled."""
    module, options = _FORMATS[name]
    made: Format = import_module(f"tests.fuzz.formats.{module}").FORMAT(name, folder, **options)
    return made
