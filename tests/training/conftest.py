"""A manifest of two kinds, and archives of generated sources."""

import random
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from training.manifest import Manifest, parse

WORDS = ("river", "stone", "window", "market", "evening", "letter", "garden", "winter", "bridge", "morning")


def prose(seed: int, size: int) -> bytes:
    """Return lines of random words."""
    draw = random.Random(seed)
    lines = (" ".join(draw.choice(WORDS) + str(draw.randrange(99)) for _ in range(9)) for _ in range(size // 60))
    return "\n".join(lines).encode() + b"\n"


def manifest_of(sources: Mapping[str, Mapping[str, Any]]) -> Manifest:
    """Return a manifest of prose and code, half and half, with a cap of 200 kB per source."""
    entry = {"licence": "MIT", "commit": "0" * 40, "sha256": "0" * 64}
    return parse({
        "host": "https://example.com/",
        "licences": ["MIT"],
        "leave": [],
        "kept_out": ["kept-out"],
        "kinds": {
            "books": {"share": 0.0, "megabytes": 0.2},
            "docs": {"share": 0.4, "megabytes": 0.2, "endings": ["md"]},
            "code": {"share": 0.4, "megabytes": 0.2, "endings": ["py"]},
            "logs": {"share": 0.2, "megabytes": 0.2, "generated": 1.0, "endings": ["log"]},
        },
        "sources": {name: {**entry, **more} for name, more in sources.items()},
    })  # fmt: skip


@pytest.fixture
def archive(tmp_path: Path) -> Callable[[str, Mapping[str, bytes]], None]:
    """Return a function that writes the archive of one source into `tmp_path / "sources"`."""

    def write(name: str, files: Mapping[str, bytes]) -> None:
        folder = tmp_path / "sources"
        folder.mkdir(exist_ok=True)
        with zipfile.ZipFile(folder / (name.replace("/", "+") + ".zip"), "w") as packed:
            for path, content in files.items():
                packed.writestr(path, content)

    return write
