"""Compiling Triton kernels for a GPU that is not there."""

import os
import subprocess
import sys
from pathlib import Path


def compile_for_a_gpu(script: str, folder: Path) -> None:
    """Run a script that compiles kernels, in a process whose Triton does not interpret; it must succeed."""
    path = folder / "compile.py"
    path.write_text(script)
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder)}
    subprocess.run([sys.executable, str(path)], env=environment, check=True)
