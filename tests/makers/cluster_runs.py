"""Files of a run, and a run over them in this process."""

import random
from pathlib import Path

from squeeze.cluster.engine import Needs
from squeeze.cluster.operations import COMPRESS, File, Task
from squeeze.cluster.run import Run
from squeeze.system.unchanged import stamp_of
from tests.makers.inline import Inline
from tests.makers.inputs import words

BLOCK = 4096
OPTIONS = {"level": 1, "verify": True, "block_size": BLOCK, "threads": 1}
READING = {"threads": 1}


def some_bytes(size: int) -> bytes:
    """Text, what cannot be compressed (which becomes one stored block with its neighbours), and text again."""
    text = words(size)
    text = text if isinstance(text, bytes) else text.encode()
    noise = random.Random(size).randbytes(size // 3)
    return text[: size // 3] + noise + text[size // 3 : size - len(noise)]


def listed(path: Path, target: Path | None) -> File:
    status = path.stat()
    return File(path, status.st_size, stamp_of(status), target)


def made(folder: Path, name: str, data: bytes) -> File:
    path = folder / name
    path.write_bytes(data)
    return listed(path, folder / f"{name}.sqz")


def run(engine: Inline, files: list[File], operation: str = COMPRESS, seconds: float = 0.01, **more: object) -> Run:
    options = (OPTIONS if operation == COMPRESS else READING) | more
    return Run(engine, Task(operation, options, ".mark"), None, Needs(), seconds)
