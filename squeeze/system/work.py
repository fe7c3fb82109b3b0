"""The folder beside a target in which a long run leaves what is done, so that it can go on after it was stopped."""

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from squeeze.errors import SqueezeError
from squeeze.system.files import sync_folder

__all__ = ["other_settings", "work_folder"]

_TASK = "task.json"


@contextmanager
def work_folder(target: Path, work: str, task: dict[str, Any], resume: bool | None = None) -> Iterator[Path]:
    """The folder `.TARGET.WORK`, to write in. It stays when a run is stopped, and goes when the input proves wrong or
    all is done.

    task: what the run is, as JSON; what another task left is deleted. resume: whether what the same task left is
    used; None for whenever there is some. Raises SqueezeError where another process works in the folder, or `resume`
    asks to go on and the task is another.
    """
    folder = _place(target, work)
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SqueezeError(f"{target} is being written by another process") from None
        described, text = folder / _TASK, json.dumps(task, default=str)
        same = described.is_file() and described.read_text() == text
        if resume and described.is_file() and not same:
            raise SqueezeError(other_settings(target))
        if resume is False or not same:
            for path in folder.iterdir():
                if path.name != "lock":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            described.write_text(text)
        try:
            yield folder
        except SqueezeError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    shutil.rmtree(folder)
    sync_folder(folder.parent)


def other_settings(target: Path) -> str:
    """What is said where a run cannot be gone on with."""
    anew = "with -f and without --resume" if target.exists() else "without --resume"
    return f"{target}: the run that was stopped had other settings; start anew {anew}"


def _place(target: Path, work: str) -> Path:
    return target.absolute().parent / f".{target.name[:60]}.{work}"
