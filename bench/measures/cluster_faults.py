"""Runs on a local cluster in which something fails at random: a worker of Ray, a node or the driver is killed, or the
storage does not answer.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.entry import Row
from bench.measures.cluster import corpus
from bench.shared.s3_server import serving
from squeeze.cluster.engine import SETTINGS

_COMMAND = (sys.executable, "-m", "squeeze")
_COMPRESS = (*_COMMAND, "compress", "-r", "-q", "-1", "--block-size", "64K", "--cluster", "auto")
_MANIFEST = ".squeeze-compress.jsonl"


def at_work() -> list[int]:
    """Process numbers of Ray's workers on this machine that run a call of ours."""
    import psutil

    found = psutil.process_iter(["name"])
    return [one.pid for one in found if one.info["name"].startswith(("ray::compress", "ray::join"))]


def survives(
    source: Path, expected: dict[str, bytes], kind: str, chance: random.Random, lose: Callable[[], None]
) -> bool:
    with tempfile.TemporaryDirectory(dir=source.parent) as name:
        folder = Path(name, "corpus")
        shutil.copytree(source, folder)
        running = subprocess.Popen([*_COMPRESS, folder])
        killed = False
        while running.poll() is None and not killed:
            time.sleep(chance.uniform(0.2, 2))
            if victims := at_work():
                if kind == "node":
                    lose()
                else:
                    os.kill(victims[0] if kind == "worker" else running.pid, signal.SIGKILL)
                killed = True
        status = running.wait()
        if kind == "driver":
            status = subprocess.run([*_COMPRESS, folder], check=False).returncode
        proved = subprocess.run([*_COMMAND, "test", "-q", "--manifest", folder / _MANIFEST], check=False).returncode
        found = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".sqz"}
        left = {path.name for path in folder.iterdir()} - {_MANIFEST, *found, *(path.name for path in source.iterdir())}
        return status == 0 and proved == 0 and found == expected and not left


def survives_storage(source: Path, expected: dict[str, bytes], number: int, sound: Any) -> bool:
    """The same of objects in a prefix of their own, in storage that fails."""
    for path in source.iterdir():
        sound.put_object(Bucket="bucket", Key=f"{number}/{path.name}", Body=path.read_bytes())
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        status = subprocess.run([*_COMPRESS, f"s3://bucket/{number}"], check=False, cwd=folder).returncode
        proof = [*_COMMAND, "test", "-q", "--manifest", _MANIFEST]
        proved = subprocess.run(proof, check=False, cwd=folder).returncode
    listed = sound.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix=f"{number}/")
    keys = {one["Key"].partition("/")[2] for page in listed for one in page.get("Contents", [])}
    found = {
        key: sound.get_object(Bucket="bucket", Key=f"{number}/{key}")["Body"].read()
        for key in keys
        if key.endswith(".sqz")
    }
    return status == 0 and proved == 0 and found == expected and keys == {*found, *(p.name for p in source.iterdir())}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    os.environ.update(SETTINGS)  # which Ray reads when it is imported
    chance, kinds = random.Random(options.seed), options.kinds.split(",")
    with tempfile.TemporaryDirectory() as name:
        source, plain = Path(name, "source"), Path(name, "plain")
        corpus(source, options.bytes)
        shutil.copytree(source, plain)
        subprocess.run([*_COMMAND, "compress", "-r", "-q", "-1", "--block-size", "64K", plain], check=True)
        expected = {path.name: path.read_bytes() for path in plain.glob("*.sqz")}
        for kind in (kind for kind in kinds if kind != "storage"):
            with _nodes() as lose:
                survived = sum(survives(source, expected, kind, chance, lose) for _ in range(options.runs))
            yield {"killed": kind, "runs": options.runs, "survived": survived}
        if "storage" in kinds:
            with serving(Path(name, "nothing"), options.rate, options.seed) as environment:
                os.environ.update(environment)
                with _nodes():
                    survived = _storage_runs(source, expected, options.runs, environment["SOUND_URL"])
            yield {"killed": "storage", "runs": options.runs, "survived": survived, "rate": options.rate}


def _storage_runs(source: Path, expected: dict[str, bytes], runs: int, url: str) -> int:
    import boto3

    sound = boto3.client("s3", endpoint_url=url)
    return sum(survives_storage(source, expected, number, sound) for number in range(runs))


@contextmanager
def _nodes() -> Iterator[Callable[[], None]]:
    """A cluster of two nodes on this machine, and what takes the second one away and brings another."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    others = [cluster.add_node(num_cpus=1)]
    os.environ["RAY_ADDRESS"] = cluster.address

    def lose() -> None:
        cluster.remove_node(others.pop(), allow_graceful=False)
        others.append(cluster.add_node(num_cpus=1))

    try:
        yield lose
    finally:
        ray.shutdown()
        cluster.shutdown()
        del os.environ["RAY_ADDRESS"]
