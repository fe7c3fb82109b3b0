"""Virtual environments with nothing in them but what is installed there; pip's cache and indices are the user's."""

import os
import subprocess
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINNED = ("--only-binary", ":all:", "--constraint", ROOT / "constraints.txt")  # no compiler is needed


def empty(folder: Path) -> Path:
    """The Python of a new environment."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def pip(python: str | Path, *arguments: str | Path) -> None:
    run(python, "-m", "pip", arguments[0], "--disable-pip-version-check", "--quiet", *arguments[1:])


def run(*command: str | Path, folder: Path | None = None) -> str:
    """What a program prints that must succeed, away from the source: without PYTHONPATH, in a folder, / by default."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder or "/",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"Error: {command[0]} exited with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout
