"""What the program zstd makes of samples with the best of its trained dictionaries, for comparison."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

__all__ = ["best"]

_SIZES = (32 << 10, 110 << 10, 220 << 10, 512 << 10)  # bytes of dictionaries; zstd makes 110 KiB when nothing is said
_LEVEL = "-19"
_MOST = 1 << 24  # bytes to train on


def best(samples: Sequence[np.ndarray], measured: Sequence[np.ndarray]) -> int | None:
    """Bytes of what is measured, each piece compressed by itself, with the best dictionary that zstd makes of the
    samples; None where there is no zstd, or it makes none of them."""
    program = shutil.which("zstd")
    if program is None:
        return None
    every = max(sum(map(len, samples)) // _MOST, 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        learned, others = _written(folder / "learned", samples[::every]), _written(folder / "measured", measured)
        sizes = [_size(program, folder, learned, others, size) for size in _SIZES]
    return min((size for size in sizes if size is not None), default=None)


def _written(folder: Path, pieces: Sequence[np.ndarray]) -> Path:
    folder.mkdir()
    for number, piece in enumerate(pieces):
        (folder / str(number)).write_bytes(piece.tobytes())
    return folder


def _size(program: str, folder: Path, learned: Path, measured: Path, size: int) -> int | None:
    dictionary, coded = folder / str(size), folder / f"{size}.coded"
    coded.mkdir()
    training = [program, "-q", "--train", "-r", str(learned), f"--maxdict={size}", "-o", str(dictionary)]
    coding = [program, "-q", _LEVEL, "-D", str(dictionary), "-r", str(measured), "--output-dir-flat", str(coded)]
    for command in (training, coding):
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return None
    return sum(path.stat().st_size for path in coded.iterdir())
