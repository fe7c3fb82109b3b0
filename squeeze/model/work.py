"""The folder beside a target in which a long run leaves what is done, so that it can go on after it was stopped."""

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from squeeze.errors import SqueezeError
from squeeze.files import sync_folder

__all__ = ["digest", "stamps", "work_folder"]


def stamps(folder: Path) -> list[list[Any]]:
    """What changes when a file in a folder does."""
    found = sorted(path for path in folder.iterdir() if path.is_file())
    return [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in found]


def digest(tokens: torch.Tensor | None) -> str | None:
    """SHA-256 of tokens."""
    return None if tokens is None else hashlib.sha256(tokens.contiguous().numpy().tobytes()).hexdigest()


@contextmanager
def work_folder(target: Path, task: dict[str, Any], resume: bool) -> Iterator[Path]:
    """The folder to work in, beside the target. It stays when a run is stopped, so that the same task can go on.

    Raises SqueezeError where another process works in it, or it is asked to go on with another task.
    """
    work = target.absolute().parent / f".{target.name[:60]}.compressing"
    work.mkdir(exist_ok=True)
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SqueezeError(f"{target} is being written by another process") from None
        described, text = work / "task.json", json.dumps(task, default=str)
        same = described.is_file() and described.read_text() == text
        if resume and described.is_file() and not same:
            raise SqueezeError(f"{target}: the run that was stopped had other settings; start anew without --resume")
        if not (resume and same):
            for path in work.iterdir():
                if path.name != "lock":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            described.write_text(text)
        try:
            yield work
        except SqueezeError:
            shutil.rmtree(work, ignore_errors=True)
            raise
    shutil.rmtree(work)
    sync_folder(target.absolute().parent)
