"""Runs on a local cluster in which something is killed at a random moment: a worker of Ray, or the driver.

A run survives if, after the same command was run again where its driver was killed, every output is there with the
bytes that one machine writes, the manifest proves it, and nothing else is left.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.entry import Row
from bench.measures.cluster import corpus
from squeeze.cluster.engine import SETTINGS

_COMMAND = (sys.executable, "-m", "squeeze")
_MANIFEST = ".squeeze-compress.jsonl"


def at_work() -> list[int]:
    """Process numbers of Ray's workers on this machine that run a call of ours."""
    import psutil

    found = psutil.process_iter(["name"])
    return [one.pid for one in found if one.info["name"].startswith(("ray::compress", "ray::join"))]


def survives(source: Path, expected: dict[str, bytes], kind: str, chance: random.Random) -> bool:
    with tempfile.TemporaryDirectory(dir=source.parent) as name:
        folder = Path(name, "corpus")
        shutil.copytree(source, folder)
        command = [*_COMMAND, "compress", "-r", "-q", "-1", "--block-size", "64K", "--cluster", "auto", folder]
        running = subprocess.Popen(command)
        killed = False
        while running.poll() is None and not killed:
            time.sleep(chance.uniform(0.2, 2))
            victims = at_work() if kind == "worker" else [running.pid]
            if victims:
                os.kill(victims[0], signal.SIGKILL)
                killed = True
        status = running.wait()
        if kind == "driver":
            status = subprocess.run(command, check=False).returncode
        proved = subprocess.run([*_COMMAND, "test", "-q", "--manifest", folder / _MANIFEST], check=False).returncode
        found = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".sqz"}
        left = {path.name for path in folder.iterdir()} - {_MANIFEST, *found, *(path.name for path in source.iterdir())}
        return status == 0 and proved == 0 and found == expected and not left


def rows(options: argparse.Namespace) -> Iterator[Row]:
    os.environ.update(SETTINGS)  # which Ray reads when it is imported
    import ray

    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        source = Path(name, "source")
        corpus(source, options.bytes)
        plain = Path(name, "plain")
        shutil.copytree(source, plain)
        subprocess.run([*_COMMAND, "compress", "-r", "-q", "-1", "--block-size", "64K", plain], check=True)
        expected = {path.name: path.read_bytes() for path in plain.glob("*.sqz")}
        context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        os.environ["RAY_ADDRESS"] = context.address_info["address"]
        for kind in ("worker", "driver"):
            survived = sum(survives(source, expected, kind, chance) for _ in range(options.runs))
            yield {"killed": kind, "runs": options.runs, "survived": survived}
